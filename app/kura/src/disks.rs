//! Where the pool's disks are: the files and devices it is made of, and a book in the data directory that remembers
//! their paths from start to start.
//!
//! A disk is known by the UUID in its label; the book only says where to look, and names a disk that is away.

use crate::config;
use crate::data::{DataDir, replace_file};
use crate::size::Size;
use kura_admin::NewDisk;
use kura_block::{Error, Result};
use kura_controller::{DiskClass, DiskState, PoolInfo};
use kura_disk::Lock;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf, absolute};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// A disk that holds something in its beginning is not taken without `force`; most file systems, partition tables and
/// labels begin there.
const BLANK_BYTES: usize = 1 << 20;

/// The default pool: sparse files, in the data directory.
const FAST: (u32, Size) = (2, Size(512 << 20));
const SLOW: (u32, Size) = (6, Size(4 << 30));

/// A disk to be made part of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its path.
    pub path: PathBuf,
    /// What it is to be used for.
    pub class: DiskClass,
    /// Size of the sparse file to be made where the path names nothing.
    pub size: Option<Size>,
}

/// The disks a new pool is made of: those configured, or the default files in `data`.
pub fn planned(data: &DataDir, configured: &[config::Disk]) -> Vec<Planned> {
    if configured.is_empty() {
        let file = |(name, class, size)| Planned { path: data.join("disks").join(name), class, size: Some(size) };
        return default_disks().map(file).collect();
    }
    let planned = configured.iter().filter_map(|disk| {
        Some(Planned { path: disk.path()?.to_owned(), class: (*disk.class.get_ref()).into(), size: disk.size() })
    });
    planned.collect()
}

/// Refuses to make a pool whose only fast disk nobody asked for by name: a fast tier on one disk takes no writes, since
/// they would be lost with it, and who gives a pool one fast disk expects that it does.
pub fn refuse_single_fast(planned: &[Planned], insist: &str) -> Result<()> {
    let is_fast = |disk: &&Planned| disk.class == DiskClass::Fast;
    let mut fast = planned.iter().filter(is_fast);
    match (fast.next(), fast.next()) {
        (Some(only), None) if planned.len() > 1 => Err(Error::invalid(format!(
            "{} is the only fast disk, and a fast tier on one disk takes no writes: give a second fast disk, or {insist}",
            only.path.display()
        ))),
        _ => Ok(()),
    }
}

/// The disks of a configuration that lists none: their names, what they are used for, and their sizes.
pub fn default_disks() -> impl Iterator<Item = (String, DiskClass, Size)> {
    let disks = |name: &'static str, class, (count, size)| {
        (0..count).map(move |number| (format!("{name}{number}"), class, size))
    };
    disks("fast", DiskClass::Fast, FAST).chain(disks("slow", DiskClass::Slow, SLOW))
}

impl From<config::Class> for DiskClass {
    fn from(class: config::Class) -> Self {
        match class {
            config::Class::Fast => Self::Fast,
            config::Class::Slow => Self::Slow,
        }
    }
}

/// Makes sure that `path` may be labelled: makes a sparse file of `size` where it names nothing, refuses it where it is
/// in use or, without `force`, not blank.
pub fn prepare(path: &Path, size: Option<Size>, force: bool) -> Result<PathBuf> {
    let refused = |error: std::io::Error| Error::invalid(format!("{}: {error}", path.display()));
    let path = absolute(path).map_err(refused)?;
    match (path.try_exists().map_err(refused)?, size) {
        (false, Some(size)) => {
            kura_disk::create_sparse(&path, size.0)?;
            return Ok(path);
        }
        (false, None) => {
            let text = "there is no such disk: mend the path, or give a size to make a file";
            return Err(Error::missing(format!("{}: {text}", path.display())));
        }
        (true, _) => {}
    }
    kura_disk::probe(&path)?;
    drop(Lock::device(&path)?);
    let mut start = Vec::new();
    File::open(&path).and_then(|file| file.take(BLANK_BYTES as u64).read_to_end(&mut start)).map_err(refused)?;
    if !force && start.iter().any(|&byte| byte != 0) {
        let text = "is not blank; if what it holds may go, say --force, or wipe its first megabyte";
        return Err(Error::invalid(format!("{} {text}", path.display())));
    }
    Ok(path)
}

/// What is to be said of the disks for data where they are not of one size: it is no error, and may be a mistake.
pub fn unlike(sizes_bytes: impl IntoIterator<Item = u64>) -> Option<String> {
    let sizes: BTreeSet<u64> = sizes_bytes.into_iter().collect();
    let (least, most) = (sizes.first().copied()?, sizes.last().copied()?);
    (least < most).then(|| {
        let (least, most) = (Size(least), Size(most));
        format!(
            "the disks for data have unlike sizes, {least} to {most}: where a volume lies on all of them at once, only \
             {least} of each count"
        )
    })
}

/// The disks of an opened pool that were found, and where.
pub fn found(pool: &PoolInfo) -> Vec<(Uuid, String)> {
    let here = pool.disks.iter().filter(|disk| disk.state != DiskState::Missing);
    here.map(|disk| (Uuid::from_bytes(disk.uuid), disk.path.clone())).collect()
}

/// The paths by which the pool's disks are known, kept in `DIR/disks.json`.
pub struct Book {
    file: PathBuf,
    paths: Mutex<BTreeMap<Uuid, String>>,
    /// Locks on the disks that were added since the start.
    added: Mutex<BTreeMap<PathBuf, Lock>>,
}

impl Book {
    /// The book in the data directory; an empty one where there is none.
    pub fn open(data: &DataDir) -> anyhow::Result<Self> {
        use anyhow::Context;
        let file = data.join("disks.json");
        let paths = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| {
                format!("{}: mend it, or remove it and list the disks in pool.disks", file.display())
            })?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
        };
        Ok(Self { file, paths: Mutex::new(paths), added: Mutex::default() })
    }

    /// Where to look for the pool's disks: where they were, and where the configuration says.
    pub fn candidates(&self, configured: &[config::Disk]) -> Vec<String> {
        let configured = configured.iter().filter_map(|disk| absolute(disk.path()?).ok());
        let remembered = self.paths().values().map(PathBuf::from).collect::<Vec<_>>();
        let mut seen = BTreeMap::new();
        for path in configured.chain(remembered) {
            // Two names of one file are one disk.
            let real = path.canonicalize().unwrap_or_else(|_| path.clone());
            seen.entry(real).or_insert_with(|| path.display().to_string());
        }
        seen.into_values().collect()
    }

    /// Notes where disks are now.
    pub fn note(&self, disks: impl IntoIterator<Item = (Uuid, String)>) -> Result<()> {
        let mut paths = self.paths();
        let before = paths.clone();
        paths.extend(disks);
        if *paths == before { Ok(()) } else { self.write(&paths) }
    }

    /// Forgets a disk that has left the pool, and lets others have it.
    pub fn forget(&self, disk: Uuid) -> Result<()> {
        let mut paths = self.paths();
        let Some(path) = paths.remove(&disk) else { return Ok(()) };
        self.added.lock().unwrap_or_else(PoisonError::into_inner).remove(Path::new(&path));
        self.write(&paths)
    }

    fn paths(&self) -> MutexGuard<'_, BTreeMap<Uuid, String>> {
        // A map is whole even if its holder panicked.
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, paths: &BTreeMap<Uuid, String>) -> Result<()> {
        let failed =
            |error: std::io::Error| Error::device(format!("{}: cannot be written: {error}", self.file.display()));
        let text = serde_json::to_vec_pretty(paths).map_err(|error| failed(error.into()))?;
        replace_file(&self.file, &text).map_err(failed)
    }
}

impl kura_admin::Disks for Book {
    fn last_path(&self, disk: Uuid) -> Option<String> {
        self.paths().get(&disk).cloned()
    }

    fn prepare(&self, new: &NewDisk) -> Result<String> {
        let path = absolute(&new.path).map_err(|error| Error::invalid(format!("{}: {error}", new.path)))?;
        let mut added = self.added.lock().unwrap_or_else(PoisonError::into_inner);
        // Held where an earlier try failed after this.
        added.remove(&path);
        let path = prepare(&path, new.size_bytes.map(Size), new.force)?;
        added.insert(path.clone(), Lock::device(&path)?);
        path.into_os_string().into_string().map_err(|path| Error::invalid(format!("{}: not UTF-8", path.display())))
    }

    fn remember(&self, disk: Uuid, path: &str) -> Result<()> {
        self.note([(disk, path.to_owned())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_admin::Disks;

    #[test]
    fn a_disk_is_taken_when_it_is_blank() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        let missing = prepare(&path, None, false).unwrap_err();
        assert_eq!(missing.kind(), kura_block::Kind::Missing);
        assert_eq!(prepare(&path, Some(Size(4 << 20)), false).unwrap(), path);
        assert_eq!(path.metadata().unwrap().len(), 4 << 20);
        prepare(&path, None, false).unwrap();

        std::fs::write(&path, [&[0; 4096][..], b"mine"].concat()).unwrap();
        let full = prepare(&path, None, false).unwrap_err();
        assert!(full.to_string().contains("is not blank"), "{full}");
        prepare(&path, None, true).unwrap();

        let held = Lock::device(&path).unwrap();
        assert_eq!(prepare(&path, None, true).unwrap_err().kind(), kura_block::Kind::Busy);
        drop(held);
        assert!(prepare(directory.path(), None, true).is_err(), "a directory is no disk");
    }

    #[test]
    fn one_fast_disk_beside_others_is_refused() {
        let refused = |classes: &[DiskClass]| {
            let disk = |class: &DiskClass| Planned { path: "disk".into(), class: *class, size: None };
            refuse_single_fast(&classes.iter().map(disk).collect::<Vec<_>>(), "insist").is_err()
        };
        let (fast, slow) = (DiskClass::Fast, DiskClass::Slow);
        assert!(refused(&[fast, slow]) && refused(&[slow, slow, fast]));
        assert!(!refused(&[slow, slow]) && !refused(&[fast, slow, fast]) && !refused(&[fast]));
    }

    #[test]
    fn unlike_sizes_are_told() {
        assert_eq!(unlike([]), None);
        assert_eq!(unlike([1 << 30; 3]), None);
        let said = unlike([2 << 30, 1 << 30, 3 << 30]).unwrap();
        assert!(said.contains("1G to 3G") && said.contains("only 1G of each"), "{said}");
    }

    #[test]
    fn the_book_remembers_and_the_configuration_adds() {
        let directory = tempfile::tempdir().unwrap();
        let data = DataDir::open(directory.path()).unwrap();
        let book = Book::open(&data).unwrap();
        assert!(book.candidates(&[]).is_empty());
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        std::fs::write(&one, "").unwrap();
        std::os::unix::fs::symlink(&one, &two).unwrap();
        book.remember(Uuid::from_u128(1), one.to_str().unwrap()).unwrap();
        let again = Book::open(&data).unwrap();
        assert_eq!(again.last_path(Uuid::from_u128(1)).as_deref(), one.to_str());

        let config = format!(
            "pool.disks = [{{ path = '{}', class = 'slow' }}, {{ path = '/dev/x', class = 'fast' }}]",
            two.display()
        );
        let config: config::Config = toml::from_str(&config).unwrap();
        let candidates = again.candidates(&config.pool.disks);
        assert_eq!(candidates, ["/dev/x", two.to_str().unwrap()], "a link to a disk that is known is that disk");
    }
}
