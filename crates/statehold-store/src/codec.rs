//! The stored form of records and payloads.
//!
//! A record is kept behind a codec byte and a seal byte as its canonical JSON, compressed where that
//! helps. The
//! payloads of a record are kept together, in the order the record names them, each behind a codec
//! byte, a seal byte and its stored length, so that one payload can be erased without touching the
//! others. See `docs/formats/store-v1.md`.

use std::cell::RefCell;

use statehold_core::digest::BodyRef;
use statehold_core::limits::PAYLOAD_BYTES_MAX;
use zstd::bulk::{Compressor, Decompressor};

/// Payloads at least this long are kept as blobs of their own.
pub const BLOB_BYTES_MIN: usize = 64 * 1024;
/// Shorter payloads are not worth compressing.
const COMPRESS_BYTES_MIN: usize = 1024;
/// The fastest level: at the next ones compressing took a third of the time of a whole turn, for a
/// few percent of space.
const COMPRESS_LEVEL: i32 = 1;

const PLAIN: u8 = 0;
const ZSTD: u8 = 1;
const BLOB: u8 = 2;
const ERASED: u8 = 3;
/// No seal. The byte is there so that sealed payloads need no new format.
const UNSEALED: u8 = 0;

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
}

/// Packs bytes behind a codec byte and a seal byte.
pub fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(bytes.len() + 2);
    if let Some(smaller) = compress(bytes) {
        packed.extend_from_slice(&[ZSTD, UNSEALED]);
        packed.extend_from_slice(&smaller);
    } else {
        packed.extend_from_slice(&[PLAIN, UNSEALED]);
        packed.extend_from_slice(bytes);
    }
    packed
}

/// Reverses [`pack`].
///
/// # Errors
///
/// If the bytes are damaged or unpack to more than the longest payload.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>, CodecError> {
    match packed {
        [PLAIN, UNSEALED, bytes @ ..] => Ok(bytes.to_vec()),
        [ZSTD, UNSEALED, bytes @ ..] => decompress(bytes, PAYLOAD_BYTES_MAX as usize),
        [codec, seal, ..] => Err(CodecError::Unknown {
            codec: *codec,
            seal: *seal,
        }),
        [_] | [] => Err(CodecError::Length),
    }
}

/// Packs the payloads of one record. Blobs are left to the caller.
pub fn pack_bodies(bodies: &[Vec<u8>]) -> Vec<u8> {
    let mut packed = Vec::with_capacity(bodies.iter().map(|body| body.len() + 6).sum());
    for body in bodies {
        if body.len() >= BLOB_BYTES_MIN {
            push_body(&mut packed, BLOB, &[]);
        } else if let Some(smaller) = compress(body) {
            push_body(&mut packed, ZSTD, &smaller);
        } else {
            push_body(&mut packed, PLAIN, body);
        }
    }
    packed
}

fn push_body(packed: &mut Vec<u8>, codec: u8, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).expect("limits keep payloads below 4 GiB");
    packed.extend_from_slice(&[codec, UNSEALED]);
    packed.extend_from_slice(&length.to_le_bytes());
    packed.extend_from_slice(bytes);
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
) -> Result<Vec<StoredBody>, CodecError> {
    let mut rest = packed;
    for _ in 0..first {
        (_, _, rest) = split_body(rest)?;
    }
    unpack_next(&mut rest, named)
}

fn unpack_next(rest: &mut &[u8], named: &[BodyRef]) -> Result<Vec<StoredBody>, CodecError> {
    let mut bodies = Vec::with_capacity(named.len());
    for name in named {
        let (head, bytes, tail) = split_body(rest)?;
        bodies.push(unpack_body(head, bytes, name)?);
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
) -> Result<StoredBody, CodecError> {
    let stored = match (codec, seal) {
        (PLAIN, UNSEALED) => StoredBody::Inline(bytes.to_vec()),
        (ZSTD, UNSEALED) => StoredBody::Inline(decompress(bytes, name.bytes as usize)?),
        (BLOB, UNSEALED) => StoredBody::Blob,
        (ERASED, UNSEALED) => StoredBody::Erased,
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
pub fn unpack_bodies(packed: &[u8], named: &[BodyRef]) -> Result<Vec<StoredBody>, CodecError> {
    let mut rest = packed;
    let bodies = unpack_next(&mut rest, named)?;
    let is_whole = rest.is_empty();
    is_whole.then_some(bodies).ok_or(CodecError::Length)
}

/// Replaces the payloads that `erased` marks with the erased mark.
///
/// # Errors
///
/// If the bytes are damaged.
pub fn erase_bodies(packed: &[u8], erased: &[bool]) -> Result<Vec<u8>, CodecError> {
    let mut rest = packed;
    let mut kept = Vec::with_capacity(packed.len());
    for is_erased in erased {
        let (_, _, tail) = split_body(rest)?;
        if *is_erased {
            push_body(&mut kept, ERASED, &[]);
        } else {
            kept.extend_from_slice(&rest[..rest.len() - tail.len()]);
        }
        rest = tail;
    }
    let is_whole = rest.is_empty();
    is_whole.then_some(kept).ok_or(CodecError::Length)
}

thread_local! {
    // A fresh context costs more than compressing a payload of a few kilobytes.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.len() < COMPRESS_BYTES_MIN {
        return None;
    }
    let smaller = COMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Compressor::new(COMPRESS_LEVEL).ok();
        }
        kept.as_mut()
            .and_then(|compressor| compressor.compress(bytes).ok())
    })?;
    // A gain of less than an eighth is not worth the time to unpack it.
    (smaller.len() < bytes.len() - bytes.len() / 8).then_some(smaller)
}

fn decompress(bytes: &[u8], max: usize) -> Result<Vec<u8>, CodecError> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = match kept {
            Some(decompressor) => decompressor,
            None => kept.insert(Decompressor::new().map_err(CodecError::Compressed)?),
        };
        // The frame states its decompressed length; a larger buffer would be wasted.
        let said = Decompressor::upper_bound(bytes).unwrap_or(max);
        decompressor
            .decompress(bytes, said.min(max))
            .map_err(CodecError::Compressed)
    })
}

#[cfg(test)]
mod tests {
    use statehold_core::digest::PayloadKey;

    use super::*;

    fn named(bodies: &[Vec<u8>]) -> Vec<BodyRef> {
        let key = PayloadKey::from_bytes([1; 32]);
        bodies.iter().map(|body| BodyRef::of(&key, body)).collect()
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
        let packed = pack_bodies(&bodies);
        assert!(packed.len() < bodies.iter().map(Vec::len).sum::<usize>());
        let unpacked = unpack_bodies(&packed, &named(&bodies)).expect("own bytes");
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
        let packed = pack_bodies(&bodies);
        for end in 0..packed.len() {
            assert!(
                unpack_bodies(&packed[..end], &named(&bodies)).is_err(),
                "cut at {end}"
            );
        }
        let mut newer = packed.clone();
        newer[0] = 9;
        assert!(matches!(
            unpack_bodies(&newer, &named(&bodies)),
            Err(CodecError::Unknown { codec: 9, .. })
        ));
        let trailing = [packed, vec![0]].concat();
        assert!(unpack_bodies(&trailing, &named(&bodies)).is_err());
    }

    #[test]
    fn a_bomb_does_not_unpack_beyond_what_the_record_says() {
        let bomb = vec![b'x'; 10_000_000];
        let mut packed = Vec::new();
        push_body(&mut packed, ZSTD, &compress(&bomb).expect("it compresses"));
        let mut name = named(&[bomb]);
        name[0].bytes = 100;
        assert!(matches!(
            unpack_bodies(&packed, &name),
            Err(CodecError::Compressed(_))
        ));
    }

    #[test]
    fn long_payloads_are_left_to_the_blob_table() {
        let bodies = vec![vec![1; BLOB_BYTES_MIN]];
        let packed = pack_bodies(&bodies);
        assert_eq!(packed.len(), 6);
        assert_eq!(
            unpack_bodies(&packed, &named(&bodies)).expect("own"),
            [StoredBody::Blob]
        );
    }
}
