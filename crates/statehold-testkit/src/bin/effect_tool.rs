//! A tool with an effect that can be counted: `effect_tool FILE KEY ARGUMENTS` adds one line to a file,
//! durable before it ends. It counts every call and honours no key: whoever calls it twice is found out.

use std::fs::OpenOptions;
use std::io::Write;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [file, key, arguments] = args.as_slice() else {
        anyhow::bail!("effect_tool FILE KEY ARGUMENTS");
    };
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(file)
        .with_context(|| format!("opening {file}"))?;
    // One write: lines of tools that run at once do not mix.
    file.write_all(format!("{key} {arguments}\n").as_bytes())?;
    file.sync_all()?;
    Ok(())
}
