//! Tells damage in the write-ahead log from a torn tail.
//!
//! SQLite reads the log up to the first unsound frame and silently drops the rest. After a loss of
//! power that is right: the last transaction was never confirmed. But each transaction is synced
//! before the next one is written, so if anything follows the end of the unsound transaction, that
//! transaction had been confirmed, and dropping it would lose an acknowledged commit.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use super::sql::damaged;
use crate::port::StoreError;

const HEADER_BYTES: usize = 32;
const FRAME_HEADER_BYTES: usize = 24;
/// The magic number, but for its last bit, which says how the words of the checksum are read.
const MAGIC: u32 = 0x377f_0682;

/// Refuses a log in which sound commits follow an unsound one, and names the place.
pub(super) fn require_no_gap(file: &Path) -> Result<(), StoreError> {
    let unavailable = |error: std::io::Error| StoreError::Unavailable(Box::new(error));
    let mut path = file.as_os_str().to_owned();
    path.push("-wal");
    let log = match File::open(&path) {
        Ok(log) => log,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unavailable(error)),
    };
    let mut log = BufReader::new(log);
    let mut header = [0; HEADER_BYTES];
    if !read_whole(&mut log, &mut header).map_err(unavailable)? {
        return Ok(());
    }
    let mut scan = Scan::new(&header);
    let mut frame = vec![0; FRAME_HEADER_BYTES + page_bytes(file).map_err(unavailable)?];
    while read_whole(&mut log, &mut frame).map_err(unavailable)? {
        scan.take(&frame);
    }
    match scan.gap() {
        None => Ok(()),
        Some(0) => Err(damaged(
            "the header of the write-ahead log",
            "commits follow it",
        )),
        Some(frame) => {
            let place = format!("frame {frame} of the write-ahead log");
            Err(damaged(
                place,
                "it is not sound, and later commits follow it",
            ))
        }
    }
}

/// Fills the buffer, or says that the end came first.
fn read_whole(from: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<bool> {
    match from.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The page size that the data file says, or the engine's own while everything is still in the log.
fn page_bytes(file: &Path) -> std::io::Result<usize> {
    let mut header = [0; 18];
    let is_there = match File::open(file) {
        Ok(mut file) => read_whole(&mut file, &mut header)?,
        Err(_) => false,
    };
    match u16::from_be_bytes([header[16], header[17]]) {
        1 => Ok(65_536),
        bytes if is_there && bytes.is_power_of_two() && bytes >= 512 => Ok(bytes.into()),
        _ => Ok(4_096),
    }
}

/// Progress of a scan of the log.
struct Scan {
    is_big_endian: bool,
    sums: (u32, u32),
    salts: Option<[u8; 8]>,
    frames: usize,
    /// The first frame that is not sound; 0 is the header.
    unsound: Option<usize>,
    /// Whether the transaction of that frame has ended.
    has_ended: bool,
    /// Whether anything of a later transaction follows.
    is_followed: bool,
}

impl Scan {
    fn new(header: &[u8; HEADER_BYTES]) -> Self {
        let magic = word(&header[0..]);
        let is_big_endian = magic & 1 == 1;
        let sums = checksum(is_big_endian, (0, 0), &header[..24]);
        let is_sound = magic & !1 == MAGIC && sums == (word(&header[24..]), word(&header[28..]));
        Self {
            is_big_endian,
            sums,
            salts: is_sound.then(|| salts(&header[16..])),
            frames: 0,
            unsound: (!is_sound).then_some(0),
            has_ended: false,
            is_followed: false,
        }
    }

    fn take(&mut self, frame: &[u8]) {
        self.frames += 1;
        let found = salts(&frame[8..]);
        let salts = *self.salts.get_or_insert(found);
        let is_of_this_log = salts == found;
        // A frame from before the log was reset has two other salts. After a loss of power it is where a frame of
        // this log was not written yet.
        let is_older = salts[..4] != found[..4] && salts[4..] != found[4..];
        let ends_transaction = word(&frame[4..]) != 0;
        if self.unsound.is_none() {
            let sums = checksum(self.is_big_endian, self.sums, &frame[..8]);
            let sums = checksum(self.is_big_endian, sums, &frame[FRAME_HEADER_BYTES..]);
            if is_of_this_log && sums == (word(&frame[16..]), word(&frame[20..])) {
                self.sums = sums;
            } else {
                self.unsound = Some(self.frames);
                // The remains of its header may still show that it ended its transaction.
                self.has_ended = ends_transaction && !is_older;
            }
            return;
        }
        if is_of_this_log {
            self.is_followed |= self.has_ended;
            self.has_ended |= ends_transaction;
        }
    }

    fn gap(&self) -> Option<usize> {
        self.unsound.filter(|_| self.is_followed)
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn salts(bytes: &[u8]) -> [u8; 8] {
    let mut salts = [0; 8];
    salts.copy_from_slice(&bytes[..8]);
    salts
}

/// The engine's running checksum over pairs of words.
fn checksum(is_big_endian: bool, sums: (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let (mut first, mut second) = sums;
    for pair in bytes.chunks_exact(8) {
        let read = |at: usize| {
            let bytes = [pair[at], pair[at + 1], pair[at + 2], pair[at + 3]];
            if is_big_endian {
                u32::from_be_bytes(bytes)
            } else {
                u32::from_le_bytes(bytes)
            }
        };
        first = first.wrapping_add(read(0)).wrapping_add(second);
        second = second.wrapping_add(read(4)).wrapping_add(first);
    }
    (first, second)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log of an engine: frames are added with the running checksum.
    struct Log {
        salts: [u8; 8],
        sums: (u32, u32),
        frames: Vec<Vec<u8>>,
        header: [u8; HEADER_BYTES],
    }

    impl Log {
        fn new(salts: [u8; 8]) -> Self {
            let mut header = [0; HEADER_BYTES];
            header[..4].copy_from_slice(&MAGIC.to_be_bytes());
            header[16..24].copy_from_slice(&salts);
            let sums = checksum(false, (0, 0), &header[..24]);
            header[24..28].copy_from_slice(&sums.0.to_be_bytes());
            header[28..].copy_from_slice(&sums.1.to_be_bytes());
            let frames = Vec::new();
            Self {
                salts,
                sums,
                frames,
                header,
            }
        }

        fn add(&mut self, ends_transaction: bool) {
            let mut frame = vec![7; FRAME_HEADER_BYTES + 512];
            frame[4..8].copy_from_slice(&u32::from(ends_transaction).to_be_bytes());
            frame[8..16].copy_from_slice(&self.salts);
            self.sums = checksum(false, self.sums, &frame[..8]);
            self.sums = checksum(false, self.sums, &frame[FRAME_HEADER_BYTES..]);
            frame[16..20].copy_from_slice(&self.sums.0.to_be_bytes());
            frame[20..24].copy_from_slice(&self.sums.1.to_be_bytes());
            self.frames.push(frame);
        }

        fn gap(&self) -> Option<usize> {
            let mut scan = Scan::new(&self.header);
            for frame in &self.frames {
                scan.take(frame);
            }
            scan.gap()
        }
    }

    /// A commit of one frame, and one of three.
    fn log(salts: [u8; 8]) -> Log {
        let mut log = Log::new(salts);
        for ends_transaction in [true, false, false, true] {
            log.add(ends_transaction);
        }
        log
    }

    #[test]
    fn a_frame_from_before_the_log_was_reset_is_a_torn_tail() {
        let mut before = Log::new([1, 1, 1, 1, 9, 9, 9, 9]);
        for _ in 0..4 {
            before.add(true);
        }
        let mut now = log([1, 1, 1, 2, 5, 6, 7, 8]);
        // The second commit was not confirmed: of its frames, one was not written.
        now.frames[1].clone_from(&before.frames[1]);
        assert_eq!(now.gap(), None);
        // Something follows it, so that it had been confirmed.
        now.add(true);
        assert_eq!(now.gap(), Some(2));
    }

    #[test]
    fn a_damaged_commit_that_others_follow_is_a_gap() {
        for byte in 4..16 {
            let mut log = log([1, 1, 1, 2, 5, 6, 7, 8]);
            assert_eq!(log.gap(), None);
            log.frames[0][byte] ^= 16;
            assert_eq!(log.gap(), Some(1), "byte {byte}");
        }
    }
}
