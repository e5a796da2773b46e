//! Which object of the source each object at the target was made of, in files that grow as a run goes.
//!
//! ```text
//!   DIR/objects   "KURAOBJ1" { XXH3-128 of the key, XXH3-128 of source and target } ..., the last of a key counts
//!   DIR/uploads   uploads in parts that were begun, an object a line: key, id, what of
//! ```
//! A record that was torn, or never came to the disk, says nothing: its object is carried once more.

use super::Here;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

const MAGIC: &[u8; 8] = b"KURAOBJ1";
const RECORD_BYTES: usize = 32;
/// What no source and target come to.
const DISTRUSTED: u128 = 0;

/// An upload in parts that was begun at the target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// Of this object.
    pub key: String,
    /// What the target calls it.
    pub id: String,
    /// The object's [`Here::identity`]: parts of another content are of no use.
    pub of: String,
}

/// What is known of the objects that were carried: 32 bytes for each, in memory too.
pub struct Carried {
    folder: PathBuf,
    /// Once there is anything to be noted.
    file: Option<File>,
    known: HashMap<u128, u128>,
    records: usize,
}

impl Carried {
    /// Whether something was carried from here before, even if that run did not come to its end.
    pub fn is_there(folder: &Path) -> bool {
        folder.join("objects").exists()
    }

    /// Reads what a job's folder has; with nothing in it where there is none.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("objects");
        let failed = |cause| Error::state(&path, cause);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(cause) => return Err(failed(cause)),
        };
        let (records, _torn) = bytes.strip_prefix(MAGIC).unwrap_or_default().as_chunks::<RECORD_BYTES>();
        let known = records.iter().map(split).collect();
        Ok(Self { folder: folder.to_owned(), file: None, known, records: records.len() })
    }

    /// Says, durably, that what will be at the target is from here: before the first object goes there.
    pub fn claim(&mut self) -> Result<()> {
        let path = self.folder.join("objects");
        let whole = (MAGIC.len() + self.records * RECORD_BYTES) as u64;
        let made = (|| {
            let mut file = File::options().create(true).truncate(false).write(true).open(&path)?;
            file.write_all(MAGIC)?;
            // A torn record at its end goes.
            file.set_len(whole)?;
            file.seek(SeekFrom::End(0))?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()?;
            Ok(file)
        })();
        self.file = Some(made.map_err(|cause| Error::state(&path, cause))?);
        Ok(())
    }

    /// Whether the target's object of this `ETag` was made of that one.
    pub fn knows(&self, here: &Here, etag: &str) -> bool {
        self.known.get(&key_of(&here.key)) == Some(&value_of(here, etag))
    }

    /// Whether an object of this key was carried.
    pub fn has(&self, key: &str) -> bool {
        self.known.contains_key(&key_of(key))
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Notes that it was. The target must have said so.
    pub fn carried(&mut self, here: &Here, etag: &str) -> Result<()> {
        self.note(key_of(&here.key), value_of(here, etag))
    }

    /// Has the next run carry the objects of these keys again, if it was from here that they came: durably.
    pub fn distrust(&mut self, keys: &[u128]) -> Result<()> {
        for key in keys {
            if self.known.contains_key(key) {
                self.note(*key, DISTRUSTED)?;
            }
        }
        let synced = self.file.as_ref().map_or(Ok(()), File::sync_data);
        synced.map_err(|cause| Error::state(&self.folder.join("objects"), cause))
    }

    fn note(&mut self, key: u128, value: u128) -> Result<()> {
        if self.file.is_none() {
            self.claim()?;
        }
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(&join(key, value)));
        written.map_err(|cause| Error::state(&self.folder.join("objects"), cause))?;
        self.known.insert(key, value);
        self.records += 1;
        Ok(())
    }

    /// Lets go of keys but these, and of records that others replace, where they are most of the file.
    pub fn tidy(&mut self, keep: &HashSet<u128>) -> Result<()> {
        self.known.retain(|key, _| keep.contains(key));
        if self.records <= 2 * self.known.len() + 1024 {
            return Ok(());
        }
        let path = self.folder.join("objects");
        let written = (|| {
            let new = tempfile::NamedTempFile::new_in(&self.folder)?;
            let mut out = BufWriter::new(new.as_file());
            out.write_all(MAGIC)?;
            for (key, value) in &self.known {
                out.write_all(&join(*key, *value))?;
            }
            out.flush()?;
            drop(out);
            new.as_file().sync_data()?;
            Ok(new.persist(&path)?)
        })();
        self.file = Some(written.map_err(|cause| Error::state(&path, cause))?);
        self.records = self.known.len();
        Ok(())
    }

    /// Notes an upload in parts, durably, before its first part goes: whatever happens, [`Carried::uploads`] has it.
    pub fn begins(&self, upload: &Upload) -> Result<()> {
        let path = self.folder.join("uploads");
        let written = (|| {
            let mut line = serde_json::to_vec(upload)?;
            line.push(b'\n');
            let mut file = File::options().create(true).append(true).open(&path)?;
            file.write_all(&line)?;
            file.sync_all()?;
            File::open(&self.folder)?.sync_all()
        })();
        written.map_err(|cause| Error::state(&path, cause))
    }

    /// Uploads that were begun, ended or not, in the order in which they were.
    pub fn uploads(&self) -> Vec<Upload> {
        let text = std::fs::read(self.folder.join("uploads")).unwrap_or_default();
        text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }

    /// No others are left at the target.
    pub fn keep_uploads(&self, left: &[Upload]) -> Result<()> {
        let path = self.folder.join("uploads");
        let written = (|| {
            if left.is_empty() {
                return match std::fs::remove_file(&path) {
                    Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(cause),
                    _ => Ok(()),
                };
            }
            let mut new = tempfile::NamedTempFile::new_in(&self.folder)?;
            for upload in left {
                serde_json::to_writer(&mut new, upload)?;
                new.write_all(b"\n")?;
            }
            new.as_file().sync_all()?;
            Ok(new.persist(&path).map(drop)?)
        })();
        written.map_err(|cause| Error::state(&path, cause))
    }

    /// What stands for a key.
    pub fn key_of(key: &str) -> u128 {
        key_of(key)
    }
}

fn key_of(key: &str) -> u128 {
    xxh3_128(key.as_bytes())
}

fn value_of(here: &Here, etag: &str) -> u128 {
    let mut sum = Xxh3::new();
    for text in [&here.identity, etag] {
        sum.update(&(text.len() as u64).to_le_bytes());
        sum.update(text.as_bytes());
    }
    sum.update(&here.size_bytes.to_le_bytes());
    sum.digest128()
}

fn join(key: u128, value: u128) -> [u8; RECORD_BYTES] {
    let mut record = [0; RECORD_BYTES];
    record[..16].copy_from_slice(&key.to_le_bytes());
    record[16..].copy_from_slice(&value.to_le_bytes());
    record
}

fn split(record: &[u8; RECORD_BYTES]) -> (u128, u128) {
    let half = |from: usize| {
        let mut half = [0; 16];
        half.copy_from_slice(&record[from..from + 16]);
        u128::from_le_bytes(half)
    };
    (half(0), half(16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(number: usize) -> Here {
        Here { key: format!("k{number}"), identity: "1".into(), version: "null".into(), size_bytes: 1 }
    }

    #[test]
    fn a_torn_end_costs_its_record_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("objects");
        let mut carried = Carried::open(folder.path()).unwrap();
        (0..3).for_each(|number| carried.carried(&here(number), "e").unwrap());
        let whole = std::fs::read(&path).unwrap();
        for len in 0..=whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            let mut torn = Carried::open(folder.path()).unwrap();
            let left = len.saturating_sub(MAGIC.len()) / RECORD_BYTES;
            (0..3).for_each(|number| assert_eq!(torn.knows(&here(number), "e"), number < left, "{len} bytes"));
            torn.carried(&here(9), "e").unwrap();
            assert!(Carried::open(folder.path()).unwrap().knows(&here(9), "e"), "{len} bytes, and one more");
        }
    }

    #[test]
    fn what_is_distrusted_is_carried_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut carried = Carried::open(folder.path()).unwrap();
        (0..3).for_each(|number| carried.carried(&here(number), "e").unwrap());
        carried.distrust(&["k1", "stranger"].map(key_of)).unwrap();
        let known = |carried: &Carried| [0, 1, 2].map(|number| carried.knows(&here(number), "e"));
        assert_eq!(known(&carried), [true, false, true]);
        let mut again = Carried::open(folder.path()).unwrap();
        assert_eq!(known(&again), [true, false, true]);
        again.carried(&here(1), "e").unwrap();
        assert_eq!(known(&Carried::open(folder.path()).unwrap()), [true; 3]);
    }

    #[test]
    fn a_file_of_what_is_gone_is_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let mut carried = Carried::open(folder.path()).unwrap();
        (0..3000).for_each(|number| carried.carried(&here(number), "e").unwrap());
        carried.tidy(&HashSet::from([key_of("k7")])).unwrap();
        carried.carried(&here(8), "e").unwrap();
        let size = std::fs::metadata(folder.path().join("objects")).unwrap().len();
        assert_eq!(size as usize, MAGIC.len() + 2 * RECORD_BYTES);
        let read = Carried::open(folder.path()).unwrap();
        assert!(read.knows(&here(7), "e") && read.knows(&here(8), "e") && !read.knows(&here(6), "e"));
    }

    #[test]
    fn uploads_are_known_until_they_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let carried = Carried::open(folder.path()).unwrap();
        let upload = |key: &str| Upload { key: key.into(), id: "7".into(), of: "1 2".into() };
        let (first, second) = (upload("a\nb"), upload("c"));
        carried.begins(&first).unwrap();
        carried.begins(&second).unwrap();
        assert_eq!(carried.uploads(), [first, second.clone()]);
        carried.keep_uploads(std::slice::from_ref(&second)).unwrap();
        assert_eq!(carried.uploads(), std::slice::from_ref(&second));
        // A line that was torn says nothing, nor harms those before it.
        let path = folder.path().join("uploads");
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend(b"{\"key\":\"d\xff");
        std::fs::write(&path, torn).unwrap();
        assert_eq!(carried.uploads(), [second]);
        carried.keep_uploads(&[]).unwrap();
        carried.keep_uploads(&[]).unwrap();
        assert_eq!(carried.uploads(), []);
    }
}
