//! The package for Debian: the program with a unit file, a user, a data directory, pages and completions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{PackageSource, run};

const MAINTAINER: &str = "the Statehold maintainers <maintainers@statehold.invalid>";

/// The files that lie in the repository as they are installed, with their places.
const FILES: [(&str, &str); 5] = [
    (
        "packaging/statehold.service",
        "usr/lib/systemd/system/statehold.service",
    ),
    (
        "packaging/sysusers.conf",
        "usr/lib/sysusers.d/statehold.conf",
    ),
    (
        "packaging/tmpfiles.conf",
        "usr/lib/tmpfiles.d/statehold.conf",
    ),
    ("packaging/statehold.toml", "etc/statehold/statehold.toml"),
    (
        "packaging/deb/copyright",
        "usr/share/doc/statehold/copyright",
    ),
];

/// The completion scripts, with their places.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/statehold"),
    ("fish", "usr/share/fish/vendor_completions.d/statehold.fish"),
    ("zsh", "usr/share/zsh/vendor-completions/_statehold"),
];

/// Makes the package.
pub(super) fn package(source: &PackageSource, parts: &Path) -> Result<PathBuf> {
    let name = format!(
        "statehold_{}-1_{}.deb",
        source.version, source.machine.debian
    );
    let root = parts.join("deb");
    install(&root, &source.program, "usr/bin/statehold", 0o755)?;
    for (from, to) in FILES {
        install(&root, Path::new(from), to, 0o644)?;
    }
    for (shell, to) in COMPLETIONS {
        install(&root, &source.completions.join(shell), to, 0o644)?;
    }
    for page in fs::read_dir(&source.pages)? {
        let page = page?.path();
        let name = page.file_name().context("a page has a name")?;
        let to = format!("usr/share/man/man1/{}", name.to_string_lossy());
        install(&root, &page, &to, 0o644)?;
        run(Command::new("gzip")
            .args(["-9", "--no-name"])
            .arg(root.join(to)))?;
    }
    for script in ["postinst", "prerm", "postrm"] {
        let from = Path::new("packaging/deb").join(script);
        install(&root, &from, &format!("DEBIAN/{script}"), 0o755)?;
    }
    fs::write(
        root.join("DEBIAN/conffiles"),
        "/etc/statehold/statehold.toml\n",
    )?;
    fs::write(root.join("DEBIAN/control"), control(source, &root)?)?;
    let file = parts.join(name);
    run(Command::new("dpkg-deb")
        .args([
            "--root-owner-group",
            "-Zxz",
            &format!("-z{}", source.level),
            "--build",
        ])
        .args([&root, &file]))?;
    Ok(file)
}

fn control(source: &PackageSource, root: &Path) -> Result<String> {
    let kilobytes = bytes_in(root)?.div_ceil(1024);
    let (version, machine, glibc) = (&source.version, source.machine.debian, source.glibc);
    Ok(format!(
        "Package: statehold\nVersion: {version}-1\nArchitecture: {machine}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {kilobytes}\nDepends: libc6 (>= 2.{glibc}), libgcc-s1\nSection: net\nPriority: optional\n\
         Description: state server for multi-agent AI systems\n \
         It keeps what was said, what was done, what each agent remembers and what\n \
         waits for a person; it routes turns to agents, and lets people approve\n \
         what agents want to do.\n"
    ))
}

fn install(root: &Path, from: &Path, to: &str, mode: u32) -> Result<()> {
    let to = root.join(to);
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, &to).with_context(|| format!("reading {}", from.display()))?;
    fs::set_permissions(&to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

fn bytes_in(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let about = entry.metadata()?;
        bytes += if about.is_dir() {
            bytes_in(&entry.path())?
        } else {
            about.len()
        };
    }
    Ok(bytes)
}
