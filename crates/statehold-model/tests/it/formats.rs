//! The examples of the format pages are what the pages say they are.

use statehold_core::digest::Digest;
use statehold_core::record::Record;
use statehold_core::tenant::TenantRecord;

/// The last example of a page that is an object, without the line breaks of the page.
fn example(page: &str) -> String {
    let blocks = page.split("```").skip(1).step_by(2);
    let objects = blocks.filter(|block| block.trim_start().starts_with("{\"at\""));
    objects
        .last()
        .expect("the page has an example")
        .replace('\n', "")
}

fn require_described(page: &str, bytes: &str, hash: Digest) {
    let text = page.replace('\n', " ");
    assert!(text.contains(&format!("{} bytes", bytes.len())), "{bytes}");
    assert!(text.contains(&format!("Its hash is `{hash}`")), "{hash}");
}

#[test]
fn the_example_of_the_record_format_is_a_record() {
    let page = include_str!("../../../../docs/formats/record-v1.md");
    let bytes = example(page);
    let record = Record::from_bytes(bytes.as_bytes()).expect("it is one");
    require_described(page, &bytes, record.hash);
}

#[test]
fn the_example_of_the_audit_format_is_an_entry() {
    let page = include_str!("../../../../docs/formats/audit-v1.md");
    let bytes = example(page);
    let entry = TenantRecord::from_bytes(bytes.as_bytes()).expect("it is one");
    require_described(page, &bytes, entry.hash);
}
