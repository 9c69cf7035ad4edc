//! The real server, and a story in it: a coordinator asks an agent, and the agent asks a person.

use std::io::{Read, Write};
use std::ops::Deref;
use std::path::Path;
use std::process::{Child, Command};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use statehold_testkit::http::DevServer;

use super::remote::{Ended, run};

/// A development server without data on disk.
pub(super) struct Live(DevServer);

impl Deref for Live {
    type Target = DevServer;

    fn deref(&self) -> &DevServer {
        &self.0
    }
}

/// The objects of one story.
pub(super) struct Story {
    pub(super) session: String,
    /// The request of the coordinator.
    pub(super) root: String,
    /// The request of the agent that asks.
    pub(super) leaf: String,
    pub(super) leaf_fence: u64,
}

impl Live {
    pub(super) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With variables of the environment.
    pub(super) fn start_with(variables: &[(&str, &str)]) -> Self {
        Self::start_as(&["--no-demo"], variables)
    }

    /// With the demo agents.
    pub(super) fn start_demo() -> Self {
        Self::start_as(&[], &[])
    }

    /// With these flags.
    pub(super) fn start_as(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_statehold"));
        Self(DevServer::start(program, None, flags, variables))
    }

    /// Runs the program against this server, without a terminal.
    pub(super) fn run(&self, args: &[&str]) -> Ended {
        run(args, &[("STATEHOLD_URL", &self.url)])
    }

    /// The same with a key.
    pub(super) fn run_with(&self, key: &str, args: &[&str]) -> Ended {
        let variables = [
            ("STATEHOLD_URL", self.url.as_str()),
            ("STATEHOLD_TOKEN", key),
        ];
        run(args, &variables)
    }

    #[track_caller]
    pub(super) fn check(&self, args: &[&str], code: i32, says: &[&str]) -> Ended {
        let ended = self.run(args);
        assert_eq!(ended.code, code, "{args:?}: {ended:?}");
        for words in says {
            let said = format!("{}{}", ended.out, ended.err);
            assert!(
                said.contains(words),
                "{args:?} does not say {words:?}: {said}"
            );
        }
        ended
    }

    /// Runs the program on a terminal, with these lines typed, and returns its code and the screen.
    pub(super) fn run_on_terminal(
        &self,
        args: &[&str],
        typed: &str,
        variables: &[(&str, &str)],
    ) -> (i32, String) {
        self.answer_on_terminal(args, "", typed, variables)
    }

    /// The same, but nothing is typed before the screen says `prompt`.
    pub(super) fn answer_on_terminal(
        &self,
        args: &[&str],
        prompt: &str,
        typed: &str,
        variables: &[(&str, &str)],
    ) -> (i32, String) {
        self.converse_on_terminal(args, &[(prompt, typed)], variables, None)
    }

    /// The same with several answers, each typed once the screen says its prompt after the answer before, on a
    /// terminal of so many columns and rows.
    pub(super) fn converse_on_terminal(
        &self,
        args: &[&str],
        answers: &[(&str, &str)],
        variables: &[(&str, &str)],
        size: Option<(u16, u16)>,
    ) -> (i32, String) {
        let (mut child, mut terminal) = self.spawn_on_terminal(args, variables, size);
        let mut answers = answers.iter();
        let mut next = answers.next();
        let (mut said, mut answered) = (Vec::new(), 0);
        loop {
            while let Some((prompt, typed)) = next
                && let Some(at) = find(&said[answered..], prompt.as_bytes())
            {
                // Input behind the prompt belongs to the next answer.
                answered += at + prompt.len();
                terminal.write_all(typed.as_bytes()).expect("it is typed");
                next = answers.next();
            }
            let mut piece = [0; 4096];
            // The other side closing ends it with an error on Linux.
            match terminal.read(&mut piece) {
                Ok(count) if count > 0 => said.extend_from_slice(&piece[..count]),
                _ => break,
            }
        }
        // On Linux, our side tells the modes of the other one.
        let after = tcgetattr(&terminal).expect("modes").local_modes;
        let lines = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG | LocalModes::IEXTEN;
        assert!(
            after.contains(lines),
            "{args:?} left the terminal in another mode"
        );
        let screen = String::from_utf8_lossy(&said).into_owned();
        let code = child.wait().expect("it ends").code().expect("by itself");
        (code, screen)
    }

    /// Starts the program on a terminal, and returns it with our side of the terminal.
    pub(super) fn spawn_on_terminal(
        &self,
        args: &[&str],
        variables: &[(&str, &str)],
        size: Option<(u16, u16)>,
    ) -> (Child, std::fs::File) {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .expect("a terminal");
        grantpt(&ours).expect("it is ours");
        unlockpt(&ours).expect("it can be opened");
        let name = ptsname(&ours, Vec::new()).expect("it has a name");
        let name = name.to_str().expect("a plain name").to_owned();
        let open = || {
            let mut options = std::fs::OpenOptions::new();
            options
                .read(true)
                .write(true)
                .open(&name)
                .expect("its other side")
        };
        let (input, output, errors) = (open(), open(), open());
        if let Some((columns, rows)) = size {
            let size = Winsize {
                ws_row: rows,
                ws_col: columns,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            tcsetwinsize(&output, size).expect("it has a size");
        }
        let child = Command::new(env!("CARGO_BIN_EXE_statehold"))
            .args(args)
            .env_clear()
            .env("STATEHOLD_URL", &self.url)
            .env("PATH", "/usr/bin:/bin")
            .envs(variables.iter().copied())
            .stdin(input)
            .stdout(output)
            .stderr(errors)
            .spawn()
            .expect("the program starts");
        (child, std::fs::File::from(ours))
    }

    /// A key with roles, perhaps bound to a user.
    pub(super) fn key(&self, roles: &[&str], user: Option<&str>) -> String {
        let mut body = json!({ "roles": roles });
        if let Some(user) = user {
            body["user"] = user.into();
        }
        let made = self.post("/keys", &body);
        made["key"].as_str().expect("a key").to_owned()
    }

    /// A session in which `ums-agent` works for the coordinator.
    pub(super) fn story(&self, name: &str) -> Story {
        let session = self.post(
            "/sessions",
            &json!({ "app": "demo", "user": "bob", "name": name }),
        );
        let session = text(&session, "id");
        let requests = format!("/sessions/{session}/requests");
        let lease = json!({ "ttl_seconds": 3600 });
        let root = self.post(
            &requests,
            &json!({ "input": "Delete user 7", "lease": lease }),
        );
        let child = json!({
            "agent": "ums-agent", "input": "delete 7", "lease": lease,
            "parent_request_id": root["id"], "parent_fence": root["fence"],
        });
        let leaf = self.post(&requests, &child);
        Story {
            session,
            root: text(&root, "id"),
            leaf: text(&leaf, "id"),
            leaf_fence: leaf["fence"].as_u64().expect("a fence"),
        }
    }

    /// Asks a person in a story, and returns the id of the hold.
    #[track_caller]
    pub(super) fn ask(&self, story: &Story, hold: &Value) -> String {
        let mut body = hold.clone();
        body["fence"] = story.leaf_fence.into();
        let made = self.post(&format!("/requests/{}/holds", story.leaf), &body);
        text(&made, "id")
    }

    /// The usual question.
    pub(super) fn ask_to_delete(&self, story: &Story, risk: &str) -> String {
        let action = json!({
            "tool": "delete_user", "call_id": "c1", "args": { "user_id": 7, "cascade": false },
            "risk": risk,
        });
        let hold = json!({ "kind": "approval", "title": "Delete user 7", "action": action, "expires_in_seconds": 3600,
            "reasons": [{ "id": "wrong_user", "title": "Wrong user" }] });
        self.ask(story, &hold)
    }

    /// The agent runs the approved action, and answers.
    pub(super) fn finish(&self, story: &Story) {
        let items = json!([{ "kind": "tool_result", "call_id": "c1", "result": { "deleted": 7 } }]);
        self.post(
            &format!("/requests/{}/complete", story.leaf),
            &json!({ "fence": story.leaf_fence, "output": "done", "items": items }),
        );
    }

    pub(super) fn hold(&self, id: &str) -> Value {
        self.get(&format!("/holds/{id}"))
    }
}

/// Where some bytes are in others.
fn find(said: &[u8], wanted: &[u8]) -> Option<usize> {
    if wanted.is_empty() {
        return Some(0);
    }
    said.windows(wanted.len()).position(|piece| piece == wanted)
}

pub(super) fn text(value: &Value, field: &str) -> String {
    value[field].as_str().expect("a text").to_owned()
}
