//! The tree as the last complete run left it at the target, in a file.
//!
//! ```text
//!   "KURACAT1"  run 16 bytes  count  { length  record } x count, in the order of paths  XXH3-64 of all before, 8 bytes
//! ```
//! Numbers are those of [`codec`](crate::codec), the records' form is that of [`Directory::record`]. A file that is not
//! whole is no catalogue: the run then asks the target what it has.

use super::{Directory, Meta, Time};
use crate::codec::{Reader, put};
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::ops::Range;
use std::path::Path;
use uuid::Uuid;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: &[u8; 8] = b"KURACAT1";

/// A catalogue that was read. It is kept as the bytes it was read as: a directory that has not changed is found so by
/// comparing bytes, and never decoded.
#[derive(Default)]
pub struct Catalogue {
    bytes: Vec<u8>,
    records: Vec<Range<usize>>,
    run: Uuid,
}

impl Catalogue {
    /// A catalogue of these records, as a target tells them.
    pub fn of_records(mut records: Vec<Vec<u8>>) -> Result<Self> {
        records.sort_by(|one, other| path_of(one).cmp(path_of(other)));
        let mut bytes = Vec::new();
        let mut places = Vec::new();
        for record in records {
            Directory::of_record(&record)?;
            places.push(bytes.len()..bytes.len() + record.len());
            bytes.extend(record);
        }
        Ok(Self { bytes, records: places, run: Uuid::nil() })
    }

    /// Reads a catalogue; none where there is none, or one that is not whole.
    pub fn read(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let (body, sum) = bytes.split_last_chunk::<8>()?;
        if xxh3_64(body) != u64::from_le_bytes(*sum) {
            return None;
        }
        let (run, rest) = body.strip_prefix(MAGIC)?.split_first_chunk::<16>()?;
        let mut reader = Reader(rest);
        let count = reader.count().ok()?;
        let mut records = Vec::with_capacity(count);
        for _ in 0..count {
            let record = reader.bytes().ok()?;
            let end = body.len() - reader.0.len();
            records.push(end - record.len()..end);
        }
        let (run, is_whole) = (Uuid::from_bytes(*run), reader.is_empty());
        let catalogue = Self { bytes, records, run };
        let is_sorted = (1..count).all(|index| catalogue.path(index - 1) < catalogue.path(index));
        (is_whole && is_sorted).then_some(catalogue)
    }

    /// Which run left the target so.
    pub fn run(&self) -> Uuid {
        self.run
    }

    /// How many directories it has.
    pub fn directories(&self) -> usize {
        self.records.len()
    }

    /// A directory's record, in the order of paths.
    pub fn record(&self, index: usize) -> &[u8] {
        &self.bytes[self.records[index].clone()]
    }

    /// A directory's path.
    pub fn path(&self, index: usize) -> &[u8] {
        path_of(self.record(index))
    }

    /// When a directory had changed last.
    pub fn changed(&self, index: usize) -> Time {
        let mut reader = Reader(self.record(index));
        let read = reader.bytes().and_then(|_| Meta::get(&mut reader)).and_then(|_| Time::get(&mut reader));
        // A record was read whole before it came in here.
        read.unwrap_or_default()
    }

    /// Where the directory of this path is.
    pub fn find(&self, path: &[u8]) -> Option<usize> {
        let (mut least, mut beyond) = (0, self.records.len());
        while least < beyond {
            let middle = usize::midpoint(least, beyond);
            match self.path(middle).cmp(path) {
                std::cmp::Ordering::Less => least = middle + 1,
                std::cmp::Ordering::Greater => beyond = middle,
                std::cmp::Ordering::Equal => return Some(middle),
            }
        }
        None
    }

    /// Writes a catalogue in the place of the one at `path`: durably, and whole or not at all.
    pub fn write(path: &Path, run: Uuid, mut records: Vec<&[u8]>) -> Result<()> {
        records.sort_unstable_by_key(|record| path_of(record));
        let folder = path.parent().unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".catalogue-").tempfile_in(folder)?;
        let mut out = Summed { file: BufWriter::with_capacity(1 << 20, file.as_file()), sum: Xxh3::new() };
        let mut head = [&MAGIC[..], run.as_bytes()].concat();
        put(&mut head, records.len() as u64);
        out.write(&head)?;
        for record in records {
            head.clear();
            put(&mut head, record.len() as u64);
            out.write(&head)?;
            out.write(record)?;
        }
        let sum = out.sum.digest().to_le_bytes();
        out.file.write_all(&sum)?;
        out.file.flush()?;
        drop(out);
        file.as_file().sync_data()?;
        file.persist(path)?;
        Ok(())
    }
}

struct Summed<'a> {
    file: BufWriter<&'a File>,
    sum: Xxh3,
}

impl Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.update(bytes);
        self.file.write_all(bytes)
    }
}

/// A record's first field.
fn path_of(record: &[u8]) -> &[u8] {
    Reader(record).bytes().unwrap_or_default()
}
