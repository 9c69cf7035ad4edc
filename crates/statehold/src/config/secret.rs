//! Secrets, given as a value or as a file.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Context;

use crate::exit::Failure;

/// The largest secret, in bytes.
const BYTES_MAX: u64 = 64 * 1024;

/// Reads a secret given as `name` or as the file `name_file`.
///
/// # Errors
///
/// If both are given, or the file cannot be read, is open to others, or is empty.
pub(crate) fn secret(
    name: &str,
    value: Option<String>,
    file: Option<&Path>,
) -> anyhow::Result<Option<String>> {
    match (value, file) {
        (Some(_), Some(file)) => Err(Failure::usage(format!(
            "both `{name}` and a file for it ({}) are given; leave one out",
            file.display()
        ))
        .into()),
        (Some(value), None) => Ok(Some(value)),
        (None, Some(file)) => read(name, file).map(Some),
        (None, None) => Ok(None),
    }
}

fn read(name: &str, path: &Path) -> anyhow::Result<String> {
    let place = || Failure::usage(format!("`{name}` cannot be read from {}", path.display()));
    let file = std::fs::File::open(path).with_context(place)?;
    // The group may read the file: service managers and containers need that.
    let mode = file.metadata().with_context(place)?.permissions().mode();
    if mode & 0o027 != 0 {
        let message = format!(
            "{} is open to others (mode {:o})",
            path.display(),
            mode & 0o777
        );
        let hint = format!("close it with: chmod 600 {}", path.display());
        return Err(Failure::usage(message).hint(hint).into());
    }
    let mut text = String::new();
    file.take(BYTES_MAX + 1)
        .read_to_string(&mut text)
        .with_context(place)?;
    let text = text.trim_end_matches(['\n', '\r']);
    if text.is_empty() || text.len() as u64 > BYTES_MAX {
        let message = format!(
            "{} holds no secret of 1 to {BYTES_MAX} bytes",
            path.display()
        );
        return Err(Failure::usage(message).into());
    }
    Ok(text.to_owned())
}
