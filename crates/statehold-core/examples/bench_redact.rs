//! The speed of the rules for secrets on what agents write, as a ratio to copying the same bytes and to reading them
//! as JSON in the same run: `bench_redact [--quick] [--json FILE]`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use statehold_core::json_keys::require_unique_keys;
use statehold_core::redact::Redactor;

/// How long each measurement takes.
const ROUND: Duration = Duration::from_millis(400);
const MIB: f64 = 1024.0 * 1024.0;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let rounds = if args.iter().any(|arg| arg == "--quick") {
        1
    } else {
        5
    };
    let redactor = Redactor::default();
    println!(
        "{rounds} interleaved rounds; MiB/s, and the time as a ratio to a pass of the JSON scanner"
    );
    println!(
        "{:>16}  {:>9}  {:>9}  {:>9}  {:>8}  {:>7}",
        "bodies", "copy", "scan", "redact", "secrets", "ratio"
    );
    let mut lines = Vec::new();
    for (name, bodies) in mixes() {
        let bytes: usize = bodies.iter().map(String::len).sum();
        let secrets: usize = bodies
            .iter()
            .filter_map(|body| redactor.json(body, &[]))
            .map(|redacted| redacted.findings.len())
            .sum();
        let (mut copies, mut scans, mut redactions) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            copies.push(speed(bytes, || {
                for body in &bodies {
                    black_box(body.clone());
                }
            }));
            scans.push(speed(bytes, || {
                for body in &bodies {
                    black_box(require_unique_keys(body)).ok();
                }
            }));
            redactions.push(speed(bytes, || {
                for body in &bodies {
                    black_box(redactor.json(body, &[]));
                }
            }));
        }
        let (copy, scan, redact) = (median(copies), median(scans), median(redactions));
        let ratio = scan / redact;
        println!("{name:>16}  {copy:>9.0}  {scan:>9.0}  {redact:>9.0}  {secrets:>8}  {ratio:>7.2}");
        lines.push(
            json!({"bodies": name, "copy_mib_s": copy, "scan_mib_s": scan, "redact_mib_s": redact,
                          "secrets": secrets, "ratio_to_scan": ratio}),
        );
    }
    let file = args.iter().position(|arg| arg == "--json");
    if let Some(file) = file.and_then(|at| args.get(at + 1)) {
        std::fs::write(file, Value::from(lines).to_string())?;
    }
    Ok(())
}

/// MiB per second.
fn speed(bytes: usize, mut work: impl FnMut()) -> f64 {
    let (begin, mut passes) = (Instant::now(), 0.0);
    while begin.elapsed() < ROUND {
        work();
        passes += 1.0;
    }
    let mib = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) / MIB;
    mib * passes / begin.elapsed().as_secs_f64()
}

fn median(mut speeds: Vec<f64>) -> f64 {
    speeds.sort_by(f64::total_cmp);
    speeds[speeds.len() / 2]
}

/// Bodies as agents write them.
fn mixes() -> Vec<(&'static str, Vec<String>)> {
    let prose = include_str!("../../../ARCHITECTURE.md");
    let code = include_str!("../src/record.rs");
    let rows: Vec<Value> = (0..40_u64)
        .map(|n| {
            json!({"id": n, "user_id": format!("user-{n}"), "created_at": "2026-01-05T10:00:00Z", "amount": 12.5,
                   "note": "paid by card, sent by mail", "tags": ["a", "b"], "next_page_token": n})
        })
        .collect();
    let rows = json!({"content": [{"type": "text", "text": json!({"rows": rows}).to_string()}]});
    let paragraphs = prose.split("\n\n");
    let said: Vec<String> = paragraphs
        .map(|text| json!({"content": text}).to_string())
        .collect();
    let token = format!("gh{}_{}", "p", "aB3dE6gH9".repeat(4));
    let leak = json!({"content": format!("export TOKEN={token} and {}", &prose[..2_000]), "password": "x"});
    let image = format!(
        "data:image/png;base64,{}",
        "iVBORw0KGgoAAAANSUhEUgAA/9k+".repeat(40_000)
    );
    let results = vec![rows.to_string(), json!({"result": code}).to_string()];
    let mix = [said.clone(), results.clone(), vec![leak.to_string()]].concat();
    vec![
        ("messages", said),
        ("tool results", results),
        ("mix", mix),
        ("with secrets", vec![leak.to_string(); 50]),
        (
            "8 MiB of prose",
            vec![json!({"content": prose.repeat(8 * 1024 * 1024 / prose.len())}).to_string()],
        ),
        ("an image", vec![json!({"url": image}).to_string()]),
    ]
}
