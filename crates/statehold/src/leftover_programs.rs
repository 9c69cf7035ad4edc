//! Programs of tool servers that a killed server left behind. The next server on the same data ends them,
//! with all processes that they started.
//!
//! A server that stops ends its programs itself. A server that is killed cannot, and a program that does not
//! notice the end of its input would run on, beside the one that the next server starts.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use statehold_agents::spec::{AgentBook, PROGRAM_MARK, ToolTransport};

/// How often to look again: a process may start another one while it is ended.
const PASSES_MAX: usize = 10;

/// The mark of programs that the server of a data directory starts. Only one server at a time uses a
/// directory. Its number in the file system stays when it is renamed, and another directory that gets its name
/// has another one.
pub(crate) fn mark(data: &Path) -> Option<String> {
    let directory = std::fs::metadata(data).ok()?;
    Some(format!("{}-{}", directory.dev(), directory.ino()))
}

/// Marks the programs of declared tool servers.
pub(crate) fn mark_programs(book: &mut AgentBook, with: Option<&str>) {
    for server in book.tool_servers.values_mut() {
        if let Some(server) = Arc::get_mut(server)
            && let ToolTransport::Command { mark, .. } = &mut server.transport
        {
            *mark = with.map(str::to_owned);
        }
    }
}

/// Ends all processes with a mark, and logs how many there were. Needs `/proc`; without it nothing ends.
pub(crate) fn end_all(mark: &str) {
    let entry = format!("{PROGRAM_MARK}={mark}");
    let mut ended = 0;
    for _ in 0..PASSES_MAX {
        let found = end_marked(&entry);
        if found == 0 {
            break;
        }
        ended += found;
    }
    if ended > 0 {
        tracing::warn!(
            ended,
            "ended programs of tool servers that an earlier server left behind"
        );
    }
}

/// Ends the processes whose environment has an entry. Returns how many.
fn end_marked(entry: &str) -> usize {
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return 0;
    };
    let pids = processes.filter_map(|process| process.ok()?.file_name().to_str()?.parse().ok());
    let others = pids.filter(|pid: &i32| u32::try_from(*pid) != Ok(std::process::id()));
    others
        .filter(|pid| end_if_marked(*pid, entry).is_some())
        .count()
}

/// Ends a process that has the entry.
fn end_if_marked(pid: i32, entry: &str) -> Option<()> {
    // The handle stays with the process, so the signal cannot reach a later one with the same number.
    let handle = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut entries = environment.split(|byte| *byte == 0);
    entries.find(|found| *found == entry.as_bytes())?;
    pidfd_send_signal(handle, Signal::KILL).ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_mark_belongs_to_the_directory_and_not_to_its_name() {
        let parent = tempfile::tempdir().expect("a directory");
        let (data, aside) = (parent.path().join("data"), parent.path().join("aside"));
        std::fs::create_dir(&data).expect("a directory");
        let first = mark(&data);
        std::fs::rename(&data, &aside).expect("a new name");
        std::fs::create_dir(&data).expect("a directory");
        assert_eq!(mark(&aside), first, "it was renamed");
        assert_ne!(mark(&data), first, "another one has its name");
    }

    #[test]
    fn marked_programs_and_their_children_end_and_others_do_not() {
        let data = tempfile::tempdir().expect("a directory");
        let mark = mark(data.path()).expect("it is there");
        let start = |mark: &str| {
            let mut command = Command::new("sh");
            // A child in a session of its own, which no signal to the group reaches.
            command.args(["-c", "setsid sleep 1000 & echo started; wait"]);
            command
                .env(PROGRAM_MARK, mark)
                .stdout(std::process::Stdio::piped());
            let mut child = command.spawn().expect("it starts");
            let mut line = String::new();
            let out = child.stdout.as_mut().expect("an output");
            std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)
                .expect("it has started its child");
            child
        };
        let mut left = start(&mark);
        let mut other = start("another directory");

        end_all(&mark);

        let status = left.wait().expect("it has ended");
        assert!(!status.success());
        // A program that was killed is listed until the kernel has taken it down.
        let left = || end_marked(&format!("{PROGRAM_MARK}={mark}"));
        let is_gone = (0..1_000).any(|_| {
            std::thread::park_timeout(std::time::Duration::from_millis(10));
            left() == 0
        });
        assert!(is_gone);
        assert!(other.try_wait().expect("a child").is_none(), "it runs on");
        end_all("another directory");
        other.wait().expect("it has ended");
    }
}
