use std::fmt::Write as _;

use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;

use super::*;

fn parsed<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, ParseError> {
    super::scan(bytes, &JsonLimits::default())?;
    super::read(bytes)
}

fn scan(bytes: &[u8], limits: &JsonLimits) -> Result<(), JsonError> {
    super::scan(bytes, limits).map(drop)
}

fn scan_default(text: impl AsRef<[u8]>) -> Result<(), JsonError> {
    scan(text.as_ref(), &JsonLimits::default())
}

fn count(text: &str, values_max: usize) -> Result<usize, JsonError> {
    let limits = JsonLimits {
        values_max,
        ..JsonLimits::default()
    };
    super::scan(text.as_bytes(), &limits)
}

#[track_caller]
fn check_good(text: &str) {
    assert_eq!(scan_default(text), Ok(()), "{text}");
    serde_json::from_str::<Value>(text).expect(text);
}

/// Checks that the text is refused for the given reason at the given byte.
#[track_caller]
fn check_bad(text: impl AsRef<[u8]>, reason: fn(&JsonError) -> bool, offset: usize) {
    let text = text.as_ref();
    let shown = String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned();
    let error = scan_default(text).expect_err(&shown);
    assert!(reason(&error), "{shown}: {error:?}");
    assert_eq!(error.offset(), offset, "{shown}: {error}");
}

#[track_caller]
fn check_syntax(text: &str, offset: usize) {
    check_bad(text, |e| matches!(e, JsonError::Syntax { .. }), offset);
}

fn is_inexact(error: &JsonError) -> bool {
    matches!(error, JsonError::InexactNumber { .. })
}

fn is_duplicate(error: &JsonError) -> bool {
    matches!(error, JsonError::DuplicateKey { .. })
}

fn is_lone(error: &JsonError) -> bool {
    matches!(error, JsonError::LoneSurrogate { .. })
}

#[test]
fn values_of_every_kind_pass() {
    for text in [
        "{}",
        "[]",
        " \t\r\n{ \"a\" : [ 1 , { } , [ ] , null ] } \n",
        "null",
        "true",
        "false",
        "0",
        "\"\"",
        r#""plain""#,
        r#""\"\\\/\b\f\n\r\t\u00e9\u20AC""#,
        "\"\u{7f}é€😀\u{ffff}\"",
        r#""\ud83d\ude00""#,
        r#"{"":1,"a":{"a":{"a":[]}},"b":[{"a":1},{"a":2}]}"#,
    ] {
        check_good(text);
    }
}

#[test]
fn a_syntax_error_is_refused_with_its_offset() {
    for (text, offset) in [
        ("{", 1),
        ("[", 1),
        ("}", 0),
        ("{]", 1),
        ("[}", 1),
        ("[1,]", 3),
        ("[,1]", 1),
        ("[1 2]", 3),
        (r#"{"a"}"#, 4),
        (r#"{"a":}"#, 5),
        (r#"{"a":1,}"#, 7),
        (r#"{"a":1 "b":2}"#, 7),
        (r#"{"a":1]"#, 6),
        ("{a:1}", 1),
        ("{1:1}", 1),
        ("{'a':1}", 1),
        ("{} {}", 3),
        ("1 1", 2),
        ("nul", 0),
        ("truer", 4),
        ("True", 0),
        ("NaN", 0),
        ("Infinity", 0),
        ("-Infinity", 1),
        ("// comment\n1", 0),
        ("[1/**/]", 2),
        ("\u{a0}1", 0),
        ("\u{c}1", 0),
        ("\u{0}", 0),
        ("\"open", 5),
        (r#""\"#, 1),
        (r#""\x""#, 1),
        (r#""\u12""#, 1),
        (r#""\u12g4""#, 1),
        (r#""\u+123""#, 1),
        (r#""\U0041""#, 1),
    ] {
        check_syntax(text, offset);
    }
}

#[test]
fn numbers_follow_the_grammar() {
    for (text, offset) in [
        ("-", 1),
        ("+1", 0),
        (".5", 0),
        ("1.", 2),
        ("1.e3", 2),
        ("1e", 2),
        ("1e+", 3),
        ("01", 0),
        ("-01", 1),
        ("00", 0),
        ("0x10", 1),
        ("1_000", 1),
        ("--1", 1),
        ("1.2.3", 3),
        ("١", 0),
    ] {
        check_syntax(text, offset);
    }
}

#[test]
fn numbers_that_a_double_holds_as_written_pass() {
    for text in [
        "-0",
        "0.0",
        "-0.0e5",
        "0e999999999999999999999",
        "1.0",
        "1e3",
        "1E+3",
        "1e-3",
        "0.1",
        "1.50",
        "100.00",
        "123456789012345",
        "9007199254740991",
        "-9007199254740991",
        "9007199254740992",
        "-9007199254740993",
        "9223372036854775808",
        "-9223372036854775808",
        "18446744073709551615",
        "9007199254740992.0",
        "0.30000000000000004",
        "1.7976931348623157e308",
        "2.2250738585072014e-308",
        "5e-324",
        "1e-320",
        "1e23",
        "1e300",
        "9.95e-290",
        "1.000000000000000000000000000000",
        // Equally close to one double: JavaScript and Python write the first, Rust the second.
        "1925295172420993.2",
        "1925295172420993.3",
    ] {
        check_good(text);
    }
    check_good(&format!("0.{}1e400", "0".repeat(399)));
    check_good(&format!("1{}e-400", "0".repeat(400)));
    check_good(&format!("1.{}", "0".repeat(5000)));
}

#[test]
fn numbers_that_change_are_refused() {
    for text in [
        "18446744073709551616",
        "-9223372036854775809",
        "18446744073709551617",
        "123456789012345678901234567890",
        "9007199254740993.0",
        "9007199254740993e0",
        "0.10000000000000001",
        "0.10000000000000000000001",
        "3.14159265358979323846",
        "1e309",
        "1e400",
        "-1e400",
        "1.7976931348623159e308",
        "1e-324",
        "1e-400",
        "4.9e-324",
        "1e99999999999999999999",
        "1e-99999999999999999999",
    ] {
        check_bad(text, is_inexact, 0);
        check_bad(format!("[1,{text}]"), is_inexact, 3);
    }
    check_bad("9".repeat(100_000), is_inexact, 0);
    check_bad(format!("0.{}1", "0".repeat(400)), is_inexact, 0);
}

#[test]
fn a_number_that_passes_reads_as_the_nearest_double() {
    for text in [
        "0.30000000000000004",
        "1.7976931348623157e308",
        "2.2250738585072014e-308",
        "8.41e21",
        "5e-324",
    ] {
        check_good(text);
        let read: f64 = serde_json::from_str(text).expect(text);
        assert_eq!(Ok(read), text.parse(), "{text}");
    }
}

#[test]
fn nothing_and_space_are_empty() {
    for text in ["", " ", "\n\t\r "] {
        check_bad(text, |e| *e == JsonError::Empty, 0);
    }
}

#[test]
fn a_byte_order_mark_is_refused() {
    check_bad("\u{feff}{}", |e| *e == JsonError::ByteOrderMark, 0);
    check_syntax("{\u{feff}}", 1);
    check_good("\"\u{feff}\"");
}

#[test]
fn bytes_that_are_not_utf8_are_refused() {
    let reason = |e: &JsonError| matches!(e, JsonError::NotUtf8 { .. });
    check_bad(b"\"\xff\"", reason, 1);
    check_bad(b"\"ab\xc0\x80\"", reason, 3);
    check_bad(b"\"\xed\xa0\x80\"", reason, 1);
    check_bad(b"{}\xf0\x9f", reason, 2);
    check_bad(b"\xfe\xff\x00{", reason, 0);
}

#[test]
fn surrogates_come_in_pairs() {
    for text in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud83dx""#,
        r#""\ud83d\n""#,
        r#""\ud83d\u0041""#,
        r#""\ud83d\ud83d\ude00""#,
        r#""\ude00\ud83d""#,
        r#""\uD800\uDBFF""#,
    ] {
        check_bad(text, is_lone, 1);
    }
    check_bad(r#"{"\ud800":1}"#, is_lone, 2);
    check_syntax(r#""\ud83d\u00""#, 7);
}

#[test]
fn control_characters_and_nul_are_refused_at_any_place_in_a_string() {
    for length in 0..20 {
        let before = "x".repeat(length);
        for c in 0..0x20_u8 {
            let text = format!("\"{before}{}after after\"", char::from(c));
            let reason = |e: &JsonError| matches!(e, JsonError::ControlCharacter { .. });
            check_bad(text, reason, length + 1);
        }
        let reason = |e: &JsonError| matches!(e, JsonError::Nul { .. });
        check_bad(format!(r#""{before}\u0000""#), reason, length + 1);
        check_bad(format!(r#"{{"{before}\u0000":1}}"#), reason, length + 2);
        check_syntax(&format!("\"{before}"), length + 1);
        check_good(&format!("\"{before}\""));
        check_good(&format!("\"{before}é\u{80}!#[]\u{7f}{before}\""));
    }
}

#[test]
fn a_key_may_not_occur_twice_however_it_is_spelled() {
    for (text, offset) in [
        (r#"{"a":1,"a":2}"#, 7),
        (r#"{"a":1,"\u0061":2}"#, 7),
        (r#"{"\u0061":1,"a":2}"#, 12),
        (r#"{"":1,"":2}"#, 6),
        (r#"{"a/b":1,"a\/b":2}"#, 9),
        (r#"{"\n":1,"\u000a":2}"#, 8),
        (r#"{"\u000A":1,"\u000a":2}"#, 12),
        (r#"{"😀":1,"\ud83d\ude00":2}"#, 10),
        (r#"{"x":[{"b":1,"a":1,"b":1}]}"#, 19),
        (r#"{"a":{"a":1},"b":{"c":[]},"a":0}"#, 26),
        (r#"{"x\"y\\":1,"\u0078\u0022y\u005c":2}"#, 12),
    ] {
        check_bad(text, is_duplicate, offset);
    }
    check_good(r#"{"a":1,"A":2,"a ":3,"é":4,"e\u0301":5,"\\u0061":6}"#);
    check_good(r#"[{"a":{"a":1}},{"a":{"b":1,"a":2}}]"#);
}

fn object_of(keys: impl Iterator<Item = String>) -> String {
    let mut text = "{".to_owned();
    for (index, key) in keys.enumerate() {
        let comma = if index == 0 { "" } else { "," };
        write!(text, "{comma}\"{key}\":{index}").expect("a string takes all");
    }
    text + "}"
}

#[test]
fn a_duplicate_is_found_in_objects_of_any_size() {
    for count in [1, 2, 8, 15, 16, 17, 18, 40, 300] {
        let keys = || (0..count).map(|n| format!("key-{n}"));
        check_good(&object_of(keys()));
        for again in 0..count {
            let text = object_of(keys().chain([format!(r"\u006bey-{again}")]));
            let offset = text.find('\\').expect("there") - 1;
            check_bad(text, is_duplicate, offset);
        }
    }
}

#[test]
fn the_first_key_that_repeats_another_is_named() {
    let keys = (0..50).map(|n| format!("k{n}"));
    let text = object_of(keys.chain(["k9".into(), "k1".into(), "k9".into()]));
    let error = scan_default(&text).expect_err("duplicates");
    assert!(matches!(&error, JsonError::DuplicateKey { key, .. } if key == "k9"));
    assert!(error.to_string().contains("\"k9\""), "{error}");
    let long = "é".repeat(1000);
    let error = scan_default(object_of([long.clone(), long].into_iter())).expect_err("duplicates");
    assert!(error.to_string().len() < 256, "{error}");
}

#[test]
fn a_hundred_thousand_keys_do_not_take_quadratic_time() {
    // Pairwise, each of these would be five thousand million comparisons.
    let started = std::time::Instant::now();
    check_good(&object_of((0..100_000).map(|n| format!("key-{n}"))));
    check_good(&object_of((0..100_000).map(|n| format!("{n:050}"))));
    check_good(&object_of((0..100_000).map(|n| format!("\\u0061{n}"))));
    assert!(started.elapsed().as_secs() < 120);
}

#[test]
fn nesting_is_limited_and_never_overflows_the_stack() {
    let limits = JsonLimits {
        depth_max: 3,
        ..JsonLimits::default()
    };
    for good in ["[[[1]]]", r#"{"a":[{"b":1}]}"#, "[[[]],[[]],[[]]]"] {
        assert_eq!(scan(good.as_bytes(), &limits), Ok(()), "{good}");
    }
    for bad in ["[[[[]]]]", r#"{"a":[{"b":{}}]}"#, "[[[[1"] {
        let error = scan(bad.as_bytes(), &limits).expect_err(bad);
        assert!(matches!(error, JsonError::TooDeep { depth_max: 3, .. }));
    }
    let too_deep = |e: &JsonError| matches!(e, JsonError::TooDeep { depth_max: 64, .. });
    check_good(&format!("{}{}", "[".repeat(64), "]".repeat(64)));
    check_bad("[".repeat(10_000), too_deep, 64);
    check_bad(r#"{"a":"#.repeat(10_000), too_deep, 64 * 5);

    let unlimited = JsonLimits {
        depth_max: usize::MAX,
        values_max: usize::MAX,
        ..JsonLimits::default()
    };
    let deep = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    assert_eq!(scan(deep.as_bytes(), &unlimited), Ok(()));
    let deep = format!("{}1{}", r#"{"a":"#.repeat(100_000), "}".repeat(100_000));
    assert_eq!(scan(deep.as_bytes(), &unlimited), Ok(()));
}

#[test]
fn length_is_limited_before_anything_is_read() {
    let limits = JsonLimits {
        bytes_max: 4,
        ..JsonLimits::default()
    };
    assert_eq!(scan(b"[10]", &limits), Ok(()));
    let error = scan(b"\xff\xff\xff\xff\xff", &limits).expect_err("too long");
    assert_eq!(
        error,
        JsonError::TooLong {
            bytes: 5,
            bytes_max: 4
        }
    );
    let long = format!("\"{}\"", "x".repeat(8 * 1024 * 1024 - 2));
    check_good(&long);
    check_bad(
        format!("{long} "),
        |e| matches!(e, JsonError::TooLong { .. }),
        8 * 1024 * 1024,
    );
}

#[test]
fn refusals_say_what_to_do() {
    for (text, message) in [
        ("", "there is no JSON here; send a value"),
        ("{", "byte 1: expected a key or '}'"),
        (
            r#"{"a":1,"a":1}"#,
            r#"byte 7: the object has the key "a" already; send each key once"#,
        ),
        (
            "1e999",
            "byte 0: this number cannot be kept as it is written (integers have 64 bits, others the \
             digits of a double); round it or send it as a string",
        ),
    ] {
        let error = scan_default(text).expect_err(text);
        assert_eq!(error.to_string(), message);
    }
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Order {
    items: Vec<Item>,
    note: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Item {
    kind: Kind,
    count: u32,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Message,
    ToolCall,
}

#[track_caller]
fn check_shape(body: &str, message: &str) {
    let error = parsed::<Order>(body.as_bytes()).expect_err(body);
    assert_eq!(error.to_string(), message, "{body}");
}

#[test]
fn a_body_is_read_as_its_type() {
    let order: Order = parsed(br#" {"items":[{"kind":"tool_call","count":2}]} "#).expect("sound");
    let item = Item {
        kind: Kind::ToolCall,
        count: 2,
    };
    assert_eq!(order.items, [item]);
    assert_eq!(order.note, None);
}

#[test]
fn a_wrong_form_is_refused_with_the_path_to_it() {
    check_shape(
        r#"{"items":[{"kind":"message","count":1},{"kind":"tool_call","count":1},{"kind":"x"}]}"#,
        "items[2].kind: unknown variant `x`, expected `message` or `tool_call`",
    );
    check_shape(
        r#"{"items":[{"kind":"message","count":-1}]}"#,
        "items[0].count: invalid value: integer `-1`, expected u32",
    );
    check_shape(
        r#"{"items":{}}"#,
        "items: invalid type: map, expected a sequence",
    );
    check_shape(
        r#"{"items":[{"kind":"message"}]}"#,
        "items[0]: missing field `count`",
    );
    check_shape("{}", "body: missing field `items`");
    check_shape(
        r#"{"items":[],"extra":1}"#,
        "extra: unknown field `extra`, expected `items` or `note`",
    );
    check_shape(
        r#"{"items":[],"note":["at line 1"]}"#,
        "note: invalid type: sequence, expected a string",
    );
}

#[test]
fn a_body_is_an_object() {
    for (body, found) in [
        ("[]", "an array"),
        (" \"x\"", "a string"),
        ("true", "a boolean"),
        ("false", "a boolean"),
        ("null", "null"),
        ("-1", "a number"),
    ] {
        let error = parsed::<Value>(body.as_bytes()).expect_err(body);
        assert_eq!(error, ParseError::NotAnObject { found });
        assert_eq!(
            error.to_string(),
            format!("the body is {found}; send an object")
        );
    }
}

#[test]
fn a_body_is_scanned_before_it_is_read() {
    let error = parsed::<Value>(br#"{"a":1,"a":2}"#).expect_err("duplicate");
    assert!(matches!(
        error,
        ParseError::Json(JsonError::DuplicateKey { offset: 7, .. })
    ));
    let error = parsed::<Value>("[".repeat(10_000).as_bytes()).expect_err("too deep");
    assert!(matches!(error, ParseError::Json(JsonError::TooDeep { .. })));
}

#[test]
fn every_value_counts_once_however_it_is_nested_and_keys_do_not() {
    for (text, values) in [
        ("null", 1),
        ("{}", 1),
        ("[[],[]]", 3),
        (r#"{"a":{"b":[1,true,null,"x"]},"c":{}}"#, 8),
    ] {
        assert_eq!(count(text, values), Ok(values), "{text}");
        let refused = count(text, values - 1).expect_err(text);
        assert!(
            matches!(refused, JsonError::TooManyValues { .. }),
            "{text}: {refused:?}"
        );
    }
    let error = count("[1, 2, [3]]", 3).expect_err("a value too many");
    assert_eq!(error.offset(), 7, "at the value that is one too many");
}

#[test]
fn one_text_is_one_value_whatever_its_length() {
    let text = format!(r#"{{"value":"{}"}}"#, "[0,0]".repeat(1_600_000));
    assert_eq!(count(&text, 2), Ok(2));
}

#[test]
fn the_body_of_a_call_has_room_for_a_long_list_and_for_a_long_conversation() {
    use statehold_core::limits::MERGED_ELEMENTS_MAX;
    let list = format!(
        r#"{{"set":{{"list":[{}0]}}}}"#,
        "0,".repeat(MERGED_ELEMENTS_MAX - 1)
    );
    assert_eq!(scan_default(list), Ok(()));
    let call = r#"{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}"#;
    let message = format!(
        r#"{{"role":"assistant","content":[{{"type":"text","text":"a"}}],"tool_calls":[{call}]}},"#
    );
    let messages = message.repeat(10_000);
    let conversation = format!(r#"{{"messages":[{}]}}"#, messages.trim_end_matches(','));
    assert_eq!(scan_default(conversation), Ok(()));
}

#[test]
fn raw_values_and_borrowed_text_can_be_read() {
    #[derive(Deserialize)]
    struct Raw<'a> {
        #[serde(borrow)]
        arguments: &'a RawValue,
        name: &'a str,
    }
    let body = br#"{"arguments":{ "x":1.50 },"name":"n"}"#;
    let raw: Raw = parsed(body).expect("sound");
    assert_eq!(raw.arguments.get(), r#"{ "x":1.50 }"#);
    assert_eq!(raw.name, "n");
}

/// Text with all that strings can hold, apart from NUL.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>().prop_map(|text| text.replace('\0', "")),
        "[a-c\"\\\\\u{1}-\u{20}é😀]{0,20}",
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..24)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// Pieces that make sound and nearly sound JSON likely.
fn nearly_json() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\"a\"",
        "\"b\":",
        "\"\\u0061\":",
        "\\u",
        "\\ud83d",
        "\\ude00",
        "\\n",
        "1",
        "0",
        "-",
        ".",
        "e",
        "E+",
        "9007199254740991",
        "null",
        "true",
        "false",
        " ",
        "\u{1}",
        "é",
        "{}",
        "[]",
        "{\"a\":1}",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn number() -> impl Strategy<Value = String> {
    "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_accepted_text_can_be_parsed(text in nearly_json()) {
        if scan_default(&text).is_ok() {
            prop_assert!(serde_json::from_str::<Value>(&text).is_ok());
        }
    }

    #[test]
    fn every_value_written_by_serde_is_accepted(value in value()) {
        let text = serde_json::to_string(&value).expect("a value");
        prop_assert_eq!(scan_default(&text), Ok(()), "{}", &text);
        let pretty = serde_json::to_string_pretty(&value).expect("a value");
        prop_assert_eq!(scan_default(&pretty), Ok(()), "{}", &pretty);
        let again: Value = serde_json::from_str(&text).expect("what passes can be read");
        prop_assert_eq!(again, value);
    }

    #[test]
    fn no_change_of_bytes_makes_it_panic_or_disagree(
        value in value(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        end in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = serde_json::to_vec(&value).expect("a value");
        for (index, byte) in changes {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        if cut {
            bytes.truncate(end.index(bytes.len()));
        }
        match scan_default(&bytes) {
            Ok(()) => prop_assert!(serde_json::from_slice::<Value>(&bytes).is_ok()),
            Err(error) => prop_assert!(error.offset() <= bytes.len()),
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if scan_default(&bytes).is_ok() {
            prop_assert!(serde_json::from_slice::<Value>(&bytes).is_ok());
        }
    }

    #[test]
    fn a_number_that_passes_keeps_its_digits(text in number()) {
        if scan_default(&text).is_ok() {
            let whole: Value = serde_json::from_str(&text).expect("what passes can be read");
            let read: f64 = serde_json::from_str(&text).expect("what passes can be read");
            prop_assert_eq!(Ok(read), text.parse::<f64>());
            let forms = [format!("{read:e}"), whole.to_string()];
            let digits = forms.map(|form| significant(&form));
            prop_assert!(digits.contains(&significant(&text)), "{} {:?}", &text, digits);
        }
    }

    #[test]
    fn a_number_of_fifteen_digits_passes(
        digits in 0..1_000_000_000_000_000_u64,
        power in -290..290_i32,
    ) {
        let text = format!("{digits}e{power}");
        prop_assert_eq!(scan_default(&text), Ok(()), "{}", &text);
    }

    #[test]
    fn every_finite_double_passes_as_its_shortest_decimal(value in any::<f64>()) {
        let text = format!("{value:e}");
        prop_assert_eq!(scan_default(&text).is_ok(), value.is_finite() , "{}", &text);
    }

    #[test]
    fn keys_are_the_same_if_and_only_if_their_text_is(a in text(), b in text(), many in 0..40_usize) {
        let others = (0..many).map(|n| format!("other {n}"));
        let keys: Vec<String> = others.chain([a, b]).collect();
        let has_duplicate = keys.iter().enumerate().any(|(n, key)| keys[..n].contains(key));
        let escaped = keys.iter().enumerate().map(|(n, key)| spell(key, n % 2 == 0));
        prop_assert_eq!(scan_default(object_of(escaped)).is_err(), has_duplicate);
    }
}

/// The digits of a number without its zeros at either end, its sign, point and exponent.
fn significant(number: &str) -> String {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').to_owned()
}

/// A key as it may stand in JSON: with escapes only where they must be, or everywhere.
fn spell(key: &str, escape_all: bool) -> String {
    if escape_all {
        let units = key.encode_utf16().map(|unit| format!("\\u{unit:04x}"));
        return units.collect();
    }
    let quoted = serde_json::to_string(key).expect("a string");
    quoted[1..quoted.len() - 1].to_owned()
}
