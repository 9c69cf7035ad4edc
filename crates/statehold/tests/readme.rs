//! The README says nothing that does not run: its first session is played against the real program.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

/// A development server. Stopped when the test ends, however it ends.
struct Server {
    child: Child,
    url: String,
    /// Kept, so that the server can go on talking.
    _says: BufReader<ChildStderr>,
}

impl Server {
    /// Starts one on any free port and waits until it says that it is ready.
    fn start(data: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_statehold"))
            .args(["dev", "--port", "0", "--no-open", "--no-demo", "--data"])
            .arg(data)
            .current_dir(data)
            .env_remove("STATEHOLD_CONFIG")
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut says = BufReader::new(child.stderr.take().expect("it is piped"));
        let mut said = String::new();
        while !said.contains("Ready in") {
            let read = says.read_line(&mut said).expect("it speaks UTF-8");
            assert!(read > 0, "the server ended before it was ready: {said}");
        }
        let url = said
            .split_whitespace()
            .find_map(|word| word.strip_suffix("/v1"))
            .expect("it says where the API is");
        Self {
            url: url.to_owned(),
            child,
            _says: says,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to stop.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    std::fs::read_to_string(path).expect("there is a README")
}

/// The fenced block that follows a mark.
fn block<'a>(text: &'a str, mark: &str) -> &'a str {
    let mark = format!("<!-- test: {mark} -->\n```");
    let (_, after) = text.split_once(&mark).expect("the README has the mark");
    let (_, body) = after.split_once('\n').expect("a block has lines");
    let (body, _) = body.split_once("```\n").expect("a block ends");
    body
}

fn require(program: &str) {
    let found = Command::new(program).arg("--version").output();
    assert!(
        found.is_ok_and(|found| found.status.success()),
        "this test needs {program}, which is not there; install it, for example with: \
         apt-get install {program}"
    );
}

#[test]
fn the_first_session_of_the_readme_runs_and_prints_what_it_says() {
    require("curl");
    require("python3");
    let text = readme();
    let directory = tempfile::tempdir().expect("a directory");
    let server = Server::start(directory.path());
    let output = Command::new("sh")
        .args(["-eu", "-c", block(&text, "first-session")])
        .env("STATEHOLD_URL", &server.url)
        .env("no_proxy", "127.0.0.1")
        .stdin(Stdio::null())
        .output()
        .expect("there is a shell");
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the session failed after:\n{said}\n{errors}"
    );
    assert_eq!(said, block(&text, "first-session output"), "{errors}");
}
