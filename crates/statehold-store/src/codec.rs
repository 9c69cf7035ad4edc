//! The stored form of records and payloads.
//!
//! A record is kept behind a codec byte and a seal byte as its canonical JSON, compressed where that
//! helps. The
//! payloads of a record are kept together, in the order the record names them, each behind a codec
//! byte, a seal byte and its stored length, so that one payload can be erased without touching the
//! others. Payloads are compressed first and sealed then; records are never sealed. See
//! `docs/formats/store-v6.md`.

use std::cell::RefCell;
use std::sync::Arc;

use statehold_core::digest::BodyRef;
use statehold_core::limits::PAYLOAD_BYTES_MAX;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::CParameter;

use crate::seal::{self, SealError, SealKey, SealKeys};

/// Payloads at least this long are kept as blobs of their own. In a row of the log they would not fit into
/// a page, and leave room in it that the short rows of the other agents of a turn cannot use.
pub const BLOB_BYTES_MIN: usize = 4 * 1024;
/// Payloads at least this long are stored once: one that comes again refers to the first. An answer below
/// another agent, which is about to pass it on, is a blob from this length on.
pub const ONCE_BYTES_MIN: usize = 512;
/// Shorter payloads are not worth compressing.
const COMPRESS_BYTES_MIN: usize = 1024;
/// Text that most records contain, and how often letters come in them. It packs a record of 300 to 1,100 bytes
/// to a third, and a shorter one to half. Part of the format: it must never change.
const RECORD_DICTIONARY: &[u8] = include_bytes!("codec/records.dict");
/// The fastest level: at the next ones compressing took a third of the time of a whole turn, for a
/// few percent of space.
const COMPRESS_LEVEL: i32 = 1;

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const BLOB: u8 = 2;
const ERASED: u8 = 3;
const REFERENCE: u8 = 4;
const ZSTD_RECORD: u8 = 5;
const UNSEALED: u8 = 0;
/// Encrypted under the key of the owner.
const SEALED: u8 = 1;

/// Why stored bytes cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// A length points beyond the end, or bytes are left over.
    #[error("the stored payloads end in the wrong place")]
    Length,
    /// A codec or seal of a newer version, or damage.
    #[error("unknown codec {codec} or seal {seal}")]
    Unknown {
        /// The codec byte.
        codec: u8,
        /// The seal byte.
        seal: u8,
    },
    /// Compressed bytes that are not.
    #[error("compressed bytes cannot be unpacked")]
    Compressed(#[source] std::io::Error),
    /// Sealed bytes that cannot be opened.
    #[error(transparent)]
    Sealed(#[from] SealError),
}

/// A stored payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredBody {
    /// Here.
    Inline(Vec<u8>),
    /// In the blob table, under the digest that the record names.
    Blob,
    /// Gone, on purpose.
    Erased,
    /// The same bytes are there.
    Reference(BodyPlace),
    /// Here, sealed under a key that is gone.
    KeyGone,
}

/// Where a payload is stored: a row of the log, and which payload of its record it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyPlace {
    /// The row.
    pub row: i64,
    /// How many payloads come before it.
    pub index: u32,
}

impl BodyPlace {
    fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        let (row, index) = bytes.split_at_checked(8).ok_or(CodecError::Length)?;
        let row = row.try_into().map_err(|_| CodecError::Length)?;
        let index = index.try_into().map_err(|_| CodecError::Length)?;
        Ok(Self {
            row: i64::from_le_bytes(row),
            index: u32::from_le_bytes(index),
        })
    }
}

/// Packs bytes behind a codec byte and a seal byte.
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    match compress(bytes) {
        Some(smaller) => [&[ZSTD, UNSEALED], smaller.as_slice()].concat(),
        None => plain(bytes),
    }
}

/// Packs bytes as they are.
pub fn plain(bytes: &[u8]) -> Vec<u8> {
    [&[PLAIN, UNSEALED], bytes].concat()
}

/// Packs a record like [`pack`], with the text that most records contain left out.
pub fn pack_record(bytes: &[u8]) -> Vec<u8> {
    match compress_with(&RECORD_COMPRESSOR, RECORD_DICTIONARY, bytes) {
        Some(smaller) => [&[ZSTD_RECORD, UNSEALED], smaller.as_slice()].concat(),
        None => plain(bytes),
    }
}

/// Seals what [`pack`] packed.
pub fn seal_packed(packed: &[u8], key: &SealKey) -> Vec<u8> {
    let [codec, _, bytes @ ..] = packed else {
        return packed.to_vec();
    };
    sealed_form(*codec, unpacked_bytes(packed), &key.seal(&[*codec], bytes))
}

/// A sealed value tells its length outside, so that a page knows it before it is opened.
fn sealed_form(codec: u8, unpacked: usize, sealed: &[u8]) -> Vec<u8> {
    let length = u32::try_from(unpacked).expect("limits keep payloads below 4 GiB");
    [&[codec, SEALED], length.to_le_bytes().as_slice(), sealed].concat()
}

/// Reverses [`pack`] and [`seal_packed`]. None if the key that sealed it is gone.
///
/// # Errors
///
/// If the bytes are damaged or unpack to more than the longest payload.
pub fn open(packed: &[u8], keys: &dyn SealKeys) -> Result<Option<Vec<u8>>, CodecError> {
    let [codec, SEALED, rest @ ..] = packed else {
        return unpack(packed).map(Some);
    };
    let (length, sealed) = rest.split_first_chunk::<4>().ok_or(CodecError::Length)?;
    let length = u32::from_le_bytes(*length).min(PAYLOAD_BYTES_MAX) as usize;
    let Some(bytes) = open_seal(*codec, sealed, keys)? else {
        return Ok(None);
    };
    let bytes = match *codec {
        PLAIN => bytes,
        ZSTD => decompress(&bytes, length)?,
        codec => {
            return Err(CodecError::Unknown {
                codec,
                seal: SEALED,
            });
        }
    };
    let is_whole = bytes.len() == length;
    is_whole.then_some(Some(bytes)).ok_or(CodecError::Length)
}

/// Sealed bytes as they were before. None if the key is gone.
fn open_seal(codec: u8, sealed: &[u8], keys: &dyn SealKeys) -> Result<Option<Vec<u8>>, CodecError> {
    match seal::open(keys, &[codec], sealed) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(SealError::KeyGone) => Ok(None),
        Err(damaged @ SealError::Damaged) => Err(damaged.into()),
    }
}

/// Reverses [`pack`] and [`pack_record`] of something that is not sealed.
///
/// # Errors
///
/// If the bytes are damaged or unpack to more than the longest payload.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>, CodecError> {
    match packed {
        [PLAIN, UNSEALED, bytes @ ..] => Ok(bytes.to_vec()),
        [ZSTD, UNSEALED, bytes @ ..] => decompress(bytes, PAYLOAD_BYTES_MAX as usize),
        [ZSTD_RECORD, UNSEALED, bytes @ ..] => {
            let max = PAYLOAD_BYTES_MAX as usize;
            decompress_with(&RECORD_DECOMPRESSOR, RECORD_DICTIONARY, bytes, max)
        }
        [codec, seal, ..] => Err(CodecError::Unknown {
            codec: *codec,
            seal: *seal,
        }),
        [_] | [] => Err(CodecError::Length),
    }
}

/// The most bytes that something packed unpacks to.
pub fn unpacked_bytes(packed: &[u8]) -> usize {
    match packed {
        [_, SEALED, a, b, c, d, ..] => u32::from_le_bytes([*a, *b, *c, *d]) as usize,
        [ZSTD | ZSTD_RECORD, _, bytes @ ..] => {
            Decompressor::upper_bound(bytes).unwrap_or(PAYLOAD_BYTES_MAX as usize)
        }
        _ => packed.len().saturating_sub(2),
    }
}

/// Packs the payloads of one record, each with whether it is a blob. Blobs are left to the caller.
pub fn pack_bodies<'a>(bodies: impl IntoIterator<Item = (&'a Vec<u8>, bool)>) -> Vec<u8> {
    let mut packed = Vec::new();
    for (body, is_blob) in bodies {
        if is_blob {
            packed.extend(blob());
        } else if let Some(smaller) = compress(body) {
            push_body(&mut packed, (ZSTD, UNSEALED), &smaller);
        } else {
            push_body(&mut packed, (PLAIN, UNSEALED), body);
        }
    }
    // The tail keeps them.
    packed.shrink_to_fit();
    packed
}

/// Seals packed payloads, each under the key that `key_of` has for its place; without a key one stays as it is.
///
/// # Errors
///
/// If the bytes are damaged.
pub fn seal_bodies(
    packed: &[u8],
    key_of: impl Fn(usize) -> Option<Arc<SealKey>>,
) -> Result<Vec<u8>, CodecError> {
    let mut sealed = Vec::with_capacity(packed.len() + packed.len() / 8);
    let (mut rest, mut index) = (packed, 0);
    while !rest.is_empty() {
        let ((codec, seal), bytes, tail) = split_body(rest)?;
        let is_here = matches!(codec, PLAIN | ZSTD) && seal == UNSEALED;
        match key_of(index).filter(|_| is_here) {
            Some(key) => push_body(&mut sealed, (codec, SEALED), &key.seal(&[codec], bytes)),
            None => push_body(&mut sealed, (codec, seal), bytes),
        }
        (rest, index) = (tail, index + 1);
    }
    sealed.shrink_to_fit();
    Ok(sealed)
}

fn push_body(packed: &mut Vec<u8>, (codec, seal): Head, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("limits keep payloads below 4 GiB");
    packed.extend_from_slice(&[codec, seal]);
    packed.extend_from_slice(&length.to_le_bytes());
    packed.extend_from_slice(bytes);
}

/// The stored form of one payload of a record as a value has it, without opening it. None unless the bytes are
/// here. `bytes` is the length of the payload.
///
/// # Errors
///
/// If the bytes are damaged.
pub fn value_of(stored: &[u8], bytes: u32) -> Result<Option<Vec<u8>>, CodecError> {
    let ((codec, seal), content, _) = split_body(stored)?;
    match (codec, seal) {
        (PLAIN | ZSTD, UNSEALED) => Ok(Some([&[codec, UNSEALED], content].concat())),
        (PLAIN | ZSTD, SEALED) => Ok(Some(sealed_form(codec, bytes as usize, content))),
        (BLOB | ERASED | REFERENCE, UNSEALED) => Ok(None),
        (codec, seal) => Err(CodecError::Unknown { codec, seal }),
    }
}

/// Whether the stored form of a payload says that it is a blob.
pub fn is_blob(stored: &[u8]) -> bool {
    stored.first() == Some(&BLOB)
}

/// Whether the stored form of a payload says that it was erased.
pub fn is_erased(stored: &[u8]) -> bool {
    stored.first() == Some(&ERASED)
}

/// Unpacks some payloads of one record in a row, `first` of them left out before.
///
/// # Errors
///
/// If the bytes are damaged or do not match the record.
pub fn unpack_some(
    packed: &[u8],
    first: usize,
    named: &[BodyRef],
    keys: &dyn SealKeys,
) -> Result<Vec<StoredBody>, CodecError> {
    let mut rest = packed;
    for _ in 0..first {
        (_, _, rest) = split_body(rest)?;
    }
    unpack_next(&mut rest, named, keys)
}

fn unpack_next(
    rest: &mut &[u8],
    named: &[BodyRef],
    keys: &dyn SealKeys,
) -> Result<Vec<StoredBody>, CodecError> {
    let mut bodies = Vec::with_capacity(named.len());
    for name in named {
        let (head, bytes, tail) = split_body(rest)?;
        bodies.push(unpack_body(head, bytes, name, keys)?);
        *rest = tail;
    }
    Ok(bodies)
}

/// Codec and seal of a payload.
type Head = (u8, u8);

/// The head of the next payload, its stored bytes, and the rest.
fn split_body(packed: &[u8]) -> Result<(Head, &[u8], &[u8]), CodecError> {
    let (head, tail) = packed.split_at_checked(6).ok_or(CodecError::Length)?;
    let length = u32::from_le_bytes([head[2], head[3], head[4], head[5]]) as usize;
    let (bytes, tail) = tail.split_at_checked(length).ok_or(CodecError::Length)?;
    Ok(((head[0], head[1]), bytes, tail))
}

fn unpack_body(
    (codec, seal): Head,
    bytes: &[u8],
    name: &BodyRef,
    keys: &dyn SealKeys,
) -> Result<StoredBody, CodecError> {
    let stored = match (codec, seal) {
        (PLAIN | ZSTD, SEALED) => match open_seal(codec, bytes, keys)? {
            Some(bytes) if codec == PLAIN => StoredBody::Inline(bytes),
            Some(bytes) => StoredBody::Inline(decompress(&bytes, name.bytes as usize)?),
            None => StoredBody::KeyGone,
        },
        (PLAIN, UNSEALED) => StoredBody::Inline(bytes.to_vec()),
        (ZSTD, UNSEALED) => StoredBody::Inline(decompress(bytes, name.bytes as usize)?),
        (BLOB, UNSEALED) => StoredBody::Blob,
        (ERASED, UNSEALED) => StoredBody::Erased,
        (REFERENCE, UNSEALED) => StoredBody::Reference(BodyPlace::read(bytes)?),
        (codec, seal) => return Err(CodecError::Unknown { codec, seal }),
    };
    match &stored {
        StoredBody::Inline(bytes) if bytes.len() != name.bytes as usize => Err(CodecError::Length),
        _ => Ok(stored),
    }
}

/// Unpacks the payloads of one record, which names how long each is.
///
/// # Errors
///
/// If the bytes are damaged or do not match the record.
pub fn unpack_bodies(
    packed: &[u8],
    named: &[BodyRef],
    keys: &dyn SealKeys,
) -> Result<Vec<StoredBody>, CodecError> {
    let mut rest = packed;
    let bodies = unpack_next(&mut rest, named, keys)?;
    let is_whole = rest.is_empty();
    is_whole.then_some(bodies).ok_or(CodecError::Length)
}

/// The stored form of an erased payload.
pub fn erased() -> Vec<u8> {
    let mut packed = Vec::new();
    push_body(&mut packed, (ERASED, UNSEALED), &[]);
    packed
}

/// The stored form of a payload that is kept as a blob.
pub fn blob() -> Vec<u8> {
    let mut packed = Vec::new();
    push_body(&mut packed, (BLOB, UNSEALED), &[]);
    packed
}

/// The stored form of a payload whose bytes are at another place.
pub fn reference(place: BodyPlace) -> Vec<u8> {
    let (row, index) = (place.row.to_le_bytes(), place.index.to_le_bytes());
    let mut packed = Vec::new();
    push_body(
        &mut packed,
        (REFERENCE, UNSEALED),
        &[row.as_slice(), &index].concat(),
    );
    packed
}

/// The stored forms of the payloads of one record, one by one, as they are.
///
/// # Errors
///
/// If the bytes are damaged.
pub fn split_bodies(packed: &[u8]) -> Result<Vec<&[u8]>, CodecError> {
    let (mut rest, mut bodies) = (packed, Vec::new());
    while !rest.is_empty() {
        let (_, _, tail) = split_body(rest)?;
        bodies.push(&rest[..rest.len() - tail.len()]);
        rest = tail;
    }
    Ok(bodies)
}

/// The place that the stored form of a payload refers to.
///
/// # Errors
///
/// If the bytes are damaged.
pub fn place_of(stored: &[u8]) -> Result<Option<BodyPlace>, CodecError> {
    match split_body(stored)? {
        ((REFERENCE, UNSEALED), bytes, _) => BodyPlace::read(bytes).map(Some),
        _ => Ok(None),
    }
}

type ReusedContext<T> = std::thread::LocalKey<RefCell<Option<T>>>;

thread_local! {
    // A fresh context costs more than compressing a payload of a few kilobytes.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    static RECORD_COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static RECORD_DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    let is_long = bytes.len() >= COMPRESS_BYTES_MIN;
    is_long.then(|| compress_with(&COMPRESSOR, &[], bytes))?
}

fn compress_with(
    compressor: &'static ReusedContext<Compressor<'static>>,
    dictionary: &[u8],
    bytes: &[u8],
) -> Option<Vec<u8>> {
    let smaller = compressor.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = new_compressor(dictionary).ok();
        }
        kept.as_mut()
            .and_then(|compressor| compressor.compress(bytes).ok())
    })?;
    // A gain of less than an eighth is not worth the time to unpack it.
    (smaller.len() < bytes.len() - bytes.len() / 8).then_some(smaller)
}

fn new_compressor(dictionary: &[u8]) -> std::io::Result<Compressor<'static>> {
    let mut compressor = Compressor::with_dictionary(COMPRESS_LEVEL, dictionary)?;
    // The codec byte names the dictionary; a frame need not.
    compressor.set_parameter(CParameter::DictIdFlag(false))?;
    Ok(compressor)
}

fn decompress(bytes: &[u8], max: usize) -> Result<Vec<u8>, CodecError> {
    decompress_with(&DECOMPRESSOR, &[], bytes, max)
}

fn decompress_with(
    decompressor: &'static ReusedContext<Decompressor<'static>>,
    dictionary: &[u8],
    bytes: &[u8],
    max: usize,
) -> Result<Vec<u8>, CodecError> {
    decompressor.with_borrow_mut(|kept| {
        if kept.is_none() {
            let fresh = Decompressor::with_dictionary(dictionary);
            *kept = Some(fresh.map_err(CodecError::Compressed)?);
        }
        let decompressor = kept.as_mut().expect("it was just made");
        // The frame states its decompressed length; a larger buffer would be wasted.
        let said = Decompressor::upper_bound(bytes).unwrap_or(max);
        decompressor
            .decompress(bytes, said.min(max))
            .map_err(CodecError::Compressed)
    })
}

#[cfg(test)]
mod tests {
    use statehold_core::digest::{Digest, PayloadKey};

    use super::*;
    use crate::seal::NoKeys;

    fn named(bodies: &[Vec<u8>]) -> Vec<BodyRef> {
        let key = PayloadKey::from_bytes([1; 32]);
        bodies.iter().map(|body| BodyRef::of(&key, body)).collect()
    }

    fn inline(bodies: &[Vec<u8>]) -> impl Iterator<Item = (&Vec<u8>, bool)> {
        bodies.iter().map(|body| (body, false))
    }

    fn samples() -> Vec<Vec<u8>> {
        vec![
            b"short".to_vec(),
            b"again and ".repeat(200),
            Vec::new(),
            (0..1000_u32)
                .flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes())
                .collect(),
        ]
    }

    #[test]
    fn payloads_come_back_as_they_were() {
        let bodies = samples();
        let packed = pack_bodies(inline(&bodies));
        assert!(packed.len() < bodies.iter().map(Vec::len).sum::<usize>());
        let unpacked = unpack_bodies(&packed, &named(&bodies), &NoKeys).expect("own bytes");
        assert_eq!(
            unpacked,
            bodies
                .into_iter()
                .map(StoredBody::Inline)
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn every_cut_and_every_foreign_codec_is_noticed() {
        let bodies = samples();
        let packed = pack_bodies(inline(&bodies));
        for end in 0..packed.len() {
            assert!(
                unpack_bodies(&packed[..end], &named(&bodies), &NoKeys).is_err(),
                "cut at {end}"
            );
        }
        let mut newer = packed.clone();
        newer[0] = 9;
        assert!(matches!(
            unpack_bodies(&newer, &named(&bodies), &NoKeys),
            Err(CodecError::Unknown { codec: 9, .. })
        ));
        let trailing = [packed, vec![0]].concat();
        assert!(unpack_bodies(&trailing, &named(&bodies), &NoKeys).is_err());
    }

    #[test]
    fn a_bomb_does_not_unpack_beyond_what_the_record_says() {
        let bomb = vec![b'x'; 10_000_000];
        let mut packed = Vec::new();
        let smaller = compress(&bomb).expect("it compresses");
        push_body(&mut packed, (ZSTD, UNSEALED), &smaller);
        let mut name = named(&[bomb]);
        name[0].bytes = 100;
        assert!(matches!(
            unpack_bodies(&packed, &name, &NoKeys),
            Err(CodecError::Compressed(_))
        ));
    }

    #[test]
    fn a_record_comes_back_and_its_dictionary_never_changes() {
        let record = br#"{"at":1794820409458309,"command":"append_items","events":[],"prev_hash":"e709","principal":"system","seq":1201,"session":"ses_01a1e3a1fd9b775399a57e37beef5c50","v":1}"#;
        let packed = pack_record(record);
        assert!(
            packed.len() <= 90,
            "{} bytes of {}",
            packed.len(),
            record.len()
        );
        assert_eq!(unpack(&packed).expect("own bytes"), record);
        assert_eq!(unpack(&pack_record(b"{}")).expect("own bytes"), b"{}");
        assert_eq!(
            Digest::sha256(RECORD_DICTIONARY).to_string(),
            "c912fe02123fce294a383cdfef7882bd6f3307cca64779333819dcd8b1ea430b"
        );
    }

    #[test]
    fn a_reference_takes_the_place_of_one_payload_and_leaves_the_others() {
        let bodies = samples();
        let packed = pack_bodies(inline(&bodies));
        let place = BodyPlace { row: 7, index: 2 };
        let refers = reference(place);
        let mut stored = split_bodies(&packed).expect("own bytes");
        assert_eq!(stored.concat(), packed);
        stored[1] = &refers;
        assert_eq!(place_of(stored[1]).expect("own bytes"), Some(place));
        assert_eq!(place_of(stored[0]).expect("own bytes"), None);
        let packed = stored.concat();
        let unpacked = unpack_bodies(&packed, &named(&bodies), &NoKeys).expect("own bytes");
        assert_eq!(unpacked[1], StoredBody::Reference(place));
        assert_eq!(unpacked[3], StoredBody::Inline(bodies[3].clone()));
        for end in 0..packed.len() {
            assert!(
                unpack_bodies(&packed[..end], &named(&bodies), &NoKeys).is_err(),
                "cut at {end}"
            );
        }
        let mut short = refers.clone();
        short.truncate(refers.len() - 1);
        short[2] -= 1;
        assert!(place_of(&short).is_err(), "a place has 12 bytes");
    }

    #[test]
    fn long_payloads_are_left_to_the_blob_table() {
        let bodies = vec![vec![1; BLOB_BYTES_MIN]];
        let packed = pack_bodies([(&bodies[0], true)]);
        assert_eq!(packed.len(), 6);
        assert_eq!(
            unpack_bodies(&packed, &named(&bodies), &NoKeys).expect("own"),
            [StoredBody::Blob]
        );
    }
}
