//! `cargo xtask dist`: one build of the program in every form that people install.

mod deb;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// The folder of the packages.
const FOLDER: &str = "target/packages";

/// The options of a package.
#[derive(Debug)]
pub(crate) struct DistOptions {
    /// The profile that the program is built with.
    pub(crate) profile: String,
    /// The target; that of the toolchain if there is none.
    pub(crate) target: Option<String>,
    /// A program that is built already.
    pub(crate) program: Option<PathBuf>,
    /// How hard the packages are compressed, from 0 to 9.
    pub(crate) level: u8,
}

/// A machine that packages are made for, in the words of each form.
#[derive(Debug)]
struct Machine {
    triple: &'static str,
    archive: &'static str,
    debian: &'static str,
    wheel: &'static str,
    npm: &'static str,
    /// The program that removes symbol names.
    strip: &'static str,
}

const MACHINES: [Machine; 2] = [
    Machine {
        triple: "x86_64-unknown-linux-gnu",
        archive: "x86_64-linux",
        debian: "amd64",
        wheel: "x86_64",
        npm: "x64",
        strip: "strip",
    },
    Machine {
        triple: "aarch64-unknown-linux-gnu",
        archive: "aarch64-linux",
        debian: "arm64",
        wheel: "aarch64",
        npm: "arm64",
        strip: "aarch64-linux-gnu-strip",
    },
];

/// The files that every package takes from.
struct PackageSource {
    machine: &'static Machine,
    version: String,
    /// The program without symbol names.
    program: PathBuf,
    /// Man pages and completions.
    pages: PathBuf,
    completions: PathBuf,
    /// The oldest glibc that has all that the program needs: 2 and this number.
    glibc: u32,
    /// How hard the packages are compressed.
    level: u8,
}

/// Builds the program and makes all packages of it. Prints each with its size.
pub(crate) fn packages(options: &DistOptions) -> Result<()> {
    let host = host()?;
    let triple = options.target.as_deref().unwrap_or(&host);
    let machine = MACHINES.iter().find(|machine| machine.triple == triple);
    let machine = machine.with_context(|| {
        let known = MACHINES.map(|machine| machine.triple).join(", ");
        format!("there are no packages for {triple}; use one of: {known}")
    })?;
    let built = match &options.program {
        Some(program) => program.clone(),
        None => build(&options.profile, machine)?,
    };
    let folder = Path::new(FOLDER);
    fs::create_dir_all(folder)?;
    let parts = folder.join("parts").join(machine.archive);
    if parts.exists() {
        fs::remove_dir_all(&parts)?;
    }
    let source = PackageSource::prepare((machine, &host), &built, &parts, options.level)?;
    let made = [
        archive(&source, &parts)?,
        deb::package(&source, &parts)?,
        wheel(&source, &parts)?,
        npm(&source, &parts)?,
    ];
    let size = fs::metadata(&source.program)?.len();
    println!("{:>8} MB  the program", megabytes(size));
    for package in made {
        let name = package.file_name().context("a package has a name")?;
        let place = folder.join(name);
        fs::rename(&package, &place)?;
        let bytes = fs::metadata(&place)?.len();
        println!("{:>8} MB  {}", megabytes(bytes), place.display());
    }
    Ok(())
}

/// A size for people, with one decimal.
fn megabytes(bytes: u64) -> String {
    let tenths = bytes.div_ceil(100_000);
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// The target of the toolchain.
fn host() -> Result<String> {
    let text = output(Command::new("rustc").arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}

fn build(profile: &str, machine: &Machine) -> Result<PathBuf> {
    let is_host = host()? == machine.triple;
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    cargo.args([
        "build",
        "--locked",
        "--package",
        "statehold",
        "--profile",
        profile,
    ]);
    if !is_host {
        // The C libraries and the linker of the other machine.
        let tool = machine.strip.trim_end_matches("-strip");
        let name = machine.triple.replace('-', "_");
        cargo.args(["--target", machine.triple]);
        cargo.env(format!("CC_{name}"), format!("{tool}-gcc"));
        let linker = format!("CARGO_TARGET_{}_LINKER", name.to_uppercase());
        cargo.env(linker, format!("{tool}-gcc"));
    }
    let how =
        "; another machine needs its standard library (`rustup target add`) and a cross compiler";
    run(&mut cargo).with_context(|| format!("building for {}{how}", machine.triple))?;
    let target =
        PathBuf::from(std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned()));
    let folder = if profile == "dev" { "debug" } else { profile };
    let folder = if is_host {
        target.join(folder)
    } else {
        target.join(machine.triple).join(folder)
    };
    Ok(folder.join("statehold"))
}

impl PackageSource {
    fn prepare(
        (machine, host): (&'static Machine, &str),
        built: &Path,
        parts: &Path,
        level: u8,
    ) -> Result<Self> {
        fs::create_dir_all(parts)?;
        let program = parts.join("statehold");
        fs::copy(built, &program).with_context(|| format!("reading {}", built.display()))?;
        run(Command::new(machine.strip).arg(&program))?;
        // Pages and completions are text: a program of another machine asks the one of this machine.
        let speaker = if host == machine.triple {
            program.clone()
        } else {
            build(
                "release",
                &MACHINES[usize::from(host != MACHINES[0].triple)],
            )?
        };
        let version = output(Command::new(&speaker).arg("--version"))?;
        let version = version.trim().trim_start_matches("statehold ").to_owned();
        ensure!(
            version == env!("CARGO_PKG_VERSION"),
            "{} has version {version}, not {}",
            speaker.display(),
            env!("CARGO_PKG_VERSION")
        );
        let (pages, completions) = (parts.join("man"), parts.join("completions"));
        fs::create_dir_all(&completions)?;
        run(Command::new(&speaker).arg("man-pages").arg(&pages))?;
        for shell in ["bash", "fish", "zsh"] {
            let script = output(Command::new(&speaker).args(["completions", shell]))?;
            fs::write(completions.join(shell), script)?;
        }
        Ok(Self {
            glibc: glibc_of(&program)?,
            machine,
            version,
            program,
            pages,
            completions,
            level,
        })
    }
}

/// The newest version of glibc that a program asks for: 2 and this number.
fn glibc_of(program: &Path) -> Result<u32> {
    let needs = output(
        Command::new("readelf")
            .args(["--version-info", "--wide"])
            .arg(program),
    )?;
    let versions = needs.split("GLIBC_2.").skip(1);
    let versions = versions.filter_map(|rest| {
        let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        digits.parse().ok()
    });
    versions
        .max()
        .context("the program is not linked against glibc")
}

/// An archive with the program, its pages, completions and unit file.
fn archive(source: &PackageSource, parts: &Path) -> Result<PathBuf> {
    let name = format!("statehold-{}", source.version);
    let folder = parts.join(&name);
    fs::create_dir_all(&folder)?;
    fs::copy(&source.program, folder.join("statehold"))?;
    for (from, to) in [
        ("packaging/about.md", "README.md"),
        ("packaging/deb/copyright", "LICENCE"),
        ("packaging/statehold.service", "statehold.service"),
        ("packaging/statehold.toml", "statehold.toml"),
    ] {
        fs::copy(from, folder.join(to))?;
    }
    for part in ["man", "completions"] {
        copy_folder(&parts.join(part), &folder.join(part))?;
    }
    let file = parts.join(format!("{name}-{}.tar.xz", source.machine.archive));
    let xz = format!("xz -{}", source.level);
    tar(&file, parts, &name, &xz)?;
    Ok(file)
}

/// A wheel: `pip install` puts the program where pip puts scripts.
fn wheel(source: &PackageSource, parts: &Path) -> Result<PathBuf> {
    let platform = format!("manylinux_2_{}_{}", source.glibc, source.machine.wheel);
    let mut python = Command::new("python3");
    python.arg("packaging/wheel.py").arg(&source.program);
    python.args([&source.version, &platform, "packaging/about.md"]);
    run(python.arg(parts).arg(source.level.to_string()))?;
    Ok(parts.join(format!(
        "statehold-{}-py3-none-{platform}.whl",
        source.version
    )))
}

/// A package of npm: the program is its command.
fn npm(source: &PackageSource, parts: &Path) -> Result<PathBuf> {
    let folder = parts.join("package");
    fs::create_dir_all(folder.join("bin"))?;
    fs::copy(&source.program, folder.join("bin/statehold"))?;
    fs::copy("packaging/about.md", folder.join("README.md"))?;
    let about = serde_json::json!({
        "name": "statehold",
        "version": source.version,
        "description": "The state server for multi-agent AI systems",
        "license": "Apache-2.0 OR MIT",
        "os": ["linux"],
        "cpu": [source.machine.npm],
        "libc": ["glibc"],
        "bin": { "statehold": "bin/statehold" },
        "files": ["bin"],
    });
    fs::write(folder.join("package.json"), format!("{about:#}\n"))?;
    let file = format!(
        "statehold-{}-{}-npm.tgz",
        source.version, source.machine.archive
    );
    let file = parts.join(file);
    let gzip = format!("gzip -{} --no-name", source.level.max(1));
    tar(&file, parts, "package", &gzip)?;
    Ok(file)
}

/// Packs a folder of `parent`. The same files give the same bytes.
fn tar(file: &Path, parent: &Path, folder: &str, compressor: &str) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ]);
    tar.args([
        "--mtime=@1577836800",
        "--use-compress-program",
        compressor,
        "--file",
    ])
    .arg(file);
    run(tar.arg("--directory").arg(parent).arg(folder))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("running {command:?}"))?;
    if !status.success() {
        bail!("{command:?} ended with {status}");
    }
    Ok(())
}

fn output(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("running {command:?}"))?;
    let error = || String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(
        output.status.success(),
        "{command:?} ended with {}: {}",
        output.status,
        error()
    );
    Ok(String::from_utf8(output.stdout)?)
}
