//! Where the pool's disks are: the files and devices it is made of, and a book in the data directory that remembers
//! their paths from start to start.
//!
//! A disk is known by the UUID in its label; the book only says where to look, and names a disk that is away.

use crate::config;
use crate::serve::data::{DataDir, replace_file};
use crate::size::Size;
use kura_admin::NewDisk;
use kura_block::{Error, Result};
use kura_controller::{DiskClass, PoolInfo, has_label};
use kura_disk::Lock;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf, absolute};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// A disk that holds something in its beginning is not taken without `force`; most file systems, partition tables and
/// labels begin there.
const BLANK_BYTES: usize = 1 << 20;
/// Labels lie within this beginning of a disk.
const LABEL_BYTES: usize = 8 << 10;

/// The default pool: sparse files, in the data directory.
const FAST: (u32, Size) = (2, Size(512 << 20));
const SLOW: (u32, Size) = (6, Size(4 << 30));

/// A disk to be made part of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// Its path.
    pub path: PathBuf,
    /// What to use it for.
    pub class: DiskClass,
    /// Size of the sparse file to be made where the path names nothing.
    pub size: Option<Size>,
}

/// The disks a new pool is made of: those configured, or the default files in `data`.
pub fn planned(data: &Path, configured: &[config::Disk]) -> Vec<Planned> {
    if configured.is_empty() {
        let file = |(name, class, size)| Planned { path: data.join("disks").join(name), class, size: Some(size) };
        return default_disks().map(file).collect();
    }
    let planned = configured.iter().filter_map(|disk| {
        let (path, class) = (disk.path()?, (*disk.class.get_ref()).into());
        // That of what is there already is the lab's.
        let size = disk.size().filter(|_| !path.exists());
        Some(Planned { path: path.to_owned(), class, size })
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

/// A disk that may be labelled.
#[derive(Debug)]
pub struct Usable {
    /// Its absolute path.
    pub path: PathBuf,
    /// Its size, or that of the file to be made.
    pub size_bytes: u64,
    /// True where the path names nothing yet.
    is_absent: bool,
}

impl Usable {
    /// Looks whether `path` may be labelled, and writes nothing. Refuses it where it is in use, not of `size`, if that is given, or,
    /// without `force`, not blank; where it names nothing, a sparse file of `size` is to be made.
    pub fn find(path: &Path, size: Option<Size>, force: bool) -> Result<Self> {
        let refused = |error: std::io::Error| Error::invalid(format!("{}: {error}", path.display()));
        let path = absolute(path).map_err(refused)?;
        match (path.try_exists().map_err(refused)?, size) {
            (false, Some(size)) => return Ok(Self { path, size_bytes: size.0, is_absent: true }),
            (false, None) => {
                let text = "there is no such disk: correct the path, or give a size to make a file";
                return Err(Error::missing(format!("{}: {text}", path.display())));
            }
            (true, _) => {}
        }
        let size_bytes = kura_disk::probe(&path)?.size_bytes;
        if let Some(size) = size.filter(|size| size.0 != size_bytes) {
            let (path, there) = (path.display(), Size(size_bytes));
            let text = "leave the size out to take it as it is, or name a path that is free";
            return Err(Error::invalid(format!("{path}: is there already, and has {there}, not {size}: {text}")));
        }
        drop(Lock::device(&path)?);
        if !force {
            blank(&path)?;
        }
        Ok(Self { path, size_bytes, is_absent: false })
    }

    /// Makes the file where there is none, and the directory that it is in.
    pub fn make(&self) -> Result<()> {
        if !self.is_absent {
            return Ok(());
        }
        if let Some(parent) = self.path.parent() {
            let failed = |error| Error::device(format!("{}: cannot be made: {error}", parent.display()));
            std::fs::create_dir_all(parent).map_err(failed)?;
        }
        kura_disk::create_sparse(&self.path, self.size_bytes)
    }

    /// Wipes the label of the pool that the disk belonged to, if there is one: a pool takes in no disk of another.
    fn wipe(&self) -> Result<()> {
        let refused = |error: std::io::Error| Error::device(format!("{}: {error}", self.path.display()));
        let mut start = vec![0; LABEL_BYTES];
        File::open(&self.path).and_then(|mut file| file.read_exact(&mut start)).map_err(refused)?;
        if !has_label(&start) {
            return Ok(());
        }
        start.fill(0);
        let wiped = File::options().write(true).open(&self.path).and_then(|mut file| {
            file.write_all(&start)?;
            file.sync_all()
        });
        wiped.map_err(refused)
    }
}

/// Refuses a disk that is not blank.
fn blank(path: &Path) -> Result<()> {
    let refused = |error: std::io::Error| Error::invalid(format!("{}: {error}", path.display()));
    let mut start = Vec::new();
    File::open(path).and_then(|file| file.take(BLANK_BYTES as u64).read_to_end(&mut start)).map_err(refused)?;
    if has_label(&start) {
        return Err(Error::invalid(format!(
            "{}: carries a kura label: it belongs to a pool. To serve that pool, name its data directory, or make one with \
             `kura pool import`; --force wipes it",
            path.display()
        )));
    }
    if start.iter().any(|&byte| byte != 0) {
        let text = "is not blank; if what it holds may go, say --force, or wipe its first megabyte";
        return Err(Error::invalid(format!("{} {text}", path.display())));
    }
    Ok(())
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

/// The disks of an opened pool that were found, and where. One that is away has no size, whatever else is to become of it.
fn found(pool: &PoolInfo) -> BTreeMap<Uuid, String> {
    let here = pool.disks.iter().filter(|disk| disk.size_bytes > 0);
    here.map(|disk| (Uuid::from_bytes(disk.uuid), disk.path.clone())).collect()
}

/// The paths by which the pool's disks are known, kept in `DIR/disks.json`: those in the data directory as paths from there,
/// so that a directory that is moved or copied has its own disks, and never another one's.
pub struct Book {
    /// The data directory.
    data: PathBuf,
    file: PathBuf,
    paths: Mutex<BTreeMap<Uuid, String>>,
    locks: Mutex<Locks>,
}

/// Locks on disks, by path.
#[derive(Default)]
struct Locks {
    /// In the pool.
    members: BTreeMap<PathBuf, Lock>,
    /// Prepared, and not in the pool: it did not take them, or not yet.
    prepared: BTreeMap<PathBuf, Lock>,
}

impl Book {
    /// The book in the data directory; an empty one where there is none.
    pub fn open(data: &DataDir) -> anyhow::Result<Self> {
        use anyhow::Context;
        let file = data.join("disks.json");
        let written: BTreeMap<Uuid, String> = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| {
                format!("{}: correct it, or remove it and list the disks in pool.disks", file.display())
            })?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
        };
        // An absolute path stays what it is.
        let here = |path: String| data.join(&path).to_str().map(str::to_owned).unwrap_or(path);
        let paths = written.into_iter().map(|(disk, path)| (disk, here(path))).collect();
        Ok(Self { paths: Mutex::new(paths), ..Self::new(data) })
    }

    /// A book that knows nothing; what it notes replaces what another one knew.
    pub fn new(data: &DataDir) -> Self {
        Self {
            data: data.path().to_owned(),
            file: data.join("disks.json"),
            paths: Mutex::default(),
            locks: Mutex::default(),
        }
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

    /// The pool's disks, and where they were.
    pub fn known(&self) -> BTreeMap<Uuid, String> {
        self.paths().clone()
    }

    /// Notes where the disks of an opened pool are. What it does not have it forgets, and others may have it: a crash came before a
    /// disk had joined, or after it had left.
    pub fn settle(&self, pool: &PoolInfo) -> Result<()> {
        let locks = &mut *self.locks();
        let mut paths = self.paths();
        let (before, found) = (paths.clone(), found(pool));
        // A disk that is away is not where another one is.
        let is_away = |uuid: &Uuid, path: &String| {
            let is_ours = pool.disks.iter().any(|disk| disk.uuid == *uuid.as_bytes());
            is_ours && !found.values().any(|taken| taken == path)
        };
        paths.retain(|uuid, path| is_away(uuid, path));
        for (held, _) in locks.members.extract_if(.., |held, _| !found.values().any(|path| Path::new(path) == held)) {
            if paths.values().any(|path| Path::new(path) == held) {
                tracing::warn!(path = %held.display(), "a disk of the pool was here, and what is here cannot be identified as it: it counts as missing");
            } else {
                tracing::warn!(path = %held.display(), "is not a disk of the pool, and is left alone");
            }
        }
        paths.extend(found);
        if *paths == before { Ok(()) } else { self.write(&paths) }
    }

    /// Notes where disks are now.
    pub fn note(&self, disks: impl IntoIterator<Item = (Uuid, String)>) -> Result<()> {
        let mut paths = self.paths();
        let before = paths.clone();
        paths.extend(disks);
        if *paths == before { Ok(()) } else { self.write(&paths) }
    }

    /// Takes those of the disks for this process alone that can be had, until each is released: their paths. An error where it is one
    /// of `members` that cannot, whose label was just read.
    pub fn hold(&self, paths: Vec<String>, members: &[String]) -> Result<Vec<String>> {
        let locks = &mut self.locks().members;
        let mut held = Vec::new();
        for path in paths {
            match Lock::device(&path) {
                Ok(lock) => {
                    locks.insert(PathBuf::from(&path), lock);
                    held.push(path);
                }
                Err(error) if members.contains(&path) => return Err(error),
                Err(error) => tracing::warn!(%error, "a disk cannot be opened"),
            }
        }
        Ok(held)
    }

    /// Forgets a disk that has left the pool: the next start does not look for it. Where it was.
    pub fn forget(&self, disk: Uuid) -> Result<Option<String>> {
        let mut paths = self.paths();
        let path = paths.remove(&disk);
        if path.is_some() {
            self.write(&paths)?;
        }
        Ok(path)
    }

    /// Lets others have what is at a path, which the pool has closed.
    pub fn release(&self, path: &str) {
        self.locks().members.remove(Path::new(path));
    }

    fn paths(&self) -> MutexGuard<'_, BTreeMap<Uuid, String>> {
        // A map is whole even if its holder panicked.
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn locks(&self) -> MutexGuard<'_, Locks> {
        // So are these.
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, paths: &BTreeMap<Uuid, String>) -> Result<()> {
        let failed =
            |error: std::io::Error| Error::device(format!("{}: cannot be written: {error}", self.file.display()));
        let from_here = |path: &str| {
            let inside = Path::new(path).strip_prefix(&self.data).ok().and_then(Path::to_str);
            inside.unwrap_or(path).to_owned()
        };
        let written: BTreeMap<_, _> = paths.iter().map(|(disk, path)| (disk, from_here(path))).collect();
        let text = serde_json::to_vec_pretty(&written).map_err(|error| failed(error.into()))?;
        replace_file(&self.file, &text).map_err(failed)
    }
}

impl kura_admin::Disks for Book {
    fn last_path(&self, disk: Uuid) -> Option<String> {
        self.paths().get(&disk).cloned()
    }

    fn inspect(&self, new: &NewDisk) -> Result<u64> {
        Ok(self.locks().usable(new)?.size_bytes)
    }

    fn prepare(&self, new: &NewDisk, disk: Uuid) -> Result<String> {
        let locks = &mut *self.locks();
        let usable = locks.usable(new)?;
        usable.make()?;
        let lock = Lock::device(&usable.path)?;
        if new.force {
            usable.wipe()?;
        }
        locks.prepared.insert(usable.path.clone(), lock);
        let path = usable.path.into_os_string().into_string();
        let path = path.map_err(|path| Error::invalid(format!("{}: not UTF-8", path.display())))?;
        let mut paths = self.paths();
        // What was noted there is there no more: a disk that an earlier try was to make of it, or one that was pulled.
        paths.retain(|_, known| *known != path);
        paths.insert(disk, path.clone());
        self.write(&paths)?;
        Ok(path)
    }

    fn joined(&self, path: &str) {
        let locks = &mut *self.locks();
        if let Some((path, lock)) = locks.prepared.remove_entry(Path::new(path)) {
            locks.members.insert(path, lock);
        }
    }
}

impl Locks {
    /// A disk that may be added. One that an earlier try has left is; one that is in the pool is in use.
    fn usable(&mut self, new: &NewDisk) -> Result<Usable> {
        let path = absolute(&new.path).map_err(|error| Error::invalid(format!("{}: {error}", new.path)))?;
        // By whatever name: and what has come where one of its disks was is none of them.
        if self.members.values().any(|lock| lock.is_on(&path)) {
            return Err(Error::busy(format!("{}: is in the pool already; `kura disk list` lists its disks", new.path)));
        }
        self.prepared.remove(&path);
        Usable::find(&path, new.size_bytes.map(Size), new.force)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_admin::Disks;
    use kura_block::Kind;

    #[test]
    fn a_disk_is_taken_when_it_is_blank() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("folder/disk");
        let missing = Usable::find(&path, None, false).unwrap_err();
        assert_eq!(missing.kind(), Kind::Missing);
        let usable = Usable::find(&path, Some(Size(4 << 20)), false).unwrap();
        assert_eq!((&usable.path, usable.size_bytes, path.exists()), (&path, 4 << 20, false));
        usable.make().unwrap();
        assert_eq!(path.metadata().unwrap().len(), 4 << 20);
        assert_eq!(Usable::find(&path, None, false).unwrap().size_bytes, 4 << 20);
        assert!(usable.make().is_err(), "a file that has come meanwhile stays what it is");
        Usable::find(&path, Some(Size(4 << 20)), false).unwrap();
        let unlike = Usable::find(&path, Some(Size(8 << 20)), true).unwrap_err().to_string();
        assert!(unlike.contains("has 4M, not 8M: leave the size out"), "{unlike}");

        std::fs::write(&path, [&[0; 4096][..], b"mine", &[0; LABEL_BYTES]].concat()).unwrap();
        let full = Usable::find(&path, None, false).unwrap_err();
        assert!(full.to_string().contains("is not blank"), "{full}");
        Usable::find(&path, None, true).unwrap().wipe().unwrap();
        assert_eq!(std::fs::read(&path).unwrap()[4096..4100], *b"mine", "a disk without a label stays as it is");

        std::fs::write(&path, [&[0; 4096][..], b"kura-dsk", &vec![9; 1 << 20]].concat()).unwrap();
        let labelled = Usable::find(&path, None, false).unwrap_err().to_string();
        assert!(labelled.contains("belongs to a pool") && labelled.contains("kura pool import"), "{labelled}");
        Usable::find(&path, None, true).unwrap().wipe().unwrap();
        let wiped = std::fs::read(&path).unwrap();
        assert!(wiped[..LABEL_BYTES] == [0; LABEL_BYTES] && wiped[LABEL_BYTES..].iter().all(|byte| *byte == 9));

        let held = Lock::device(&path).unwrap();
        assert_eq!(Usable::find(&path, None, true).unwrap_err().kind(), Kind::Busy);
        drop(held);
        assert!(Usable::find(directory.path(), None, true).is_err(), "a directory is no disk");
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
    fn a_disk_that_was_added_is_not_taken_again() {
        let directory = tempfile::tempdir().unwrap();
        let book = Book::new(&DataDir::open(directory.path()).unwrap());
        let path = directory.path().join("disk").display().to_string();
        let class = kura_admin::DiskClass::Slow;
        let new = NewDisk { path: path.clone(), class, size_bytes: Some(4 << 20), force: true };
        assert_eq!((book.inspect(&new).unwrap(), Path::new(&path).exists()), (4 << 20, false));
        let prepare = |disk| book.prepare(&new, Uuid::from_u128(disk));
        // The pool did not take it: it can be tried again.
        assert_eq!(prepare(0).unwrap(), path);
        assert_eq!(prepare(1).unwrap(), path);
        book.joined(&path);
        let refused = prepare(2).unwrap_err();
        assert!(refused.kind() == Kind::Busy && refused.to_string().contains("in the pool already"));
        assert_eq!(book.forget(Uuid::from_u128(1)).unwrap().as_ref(), Some(&path));
        assert_eq!(prepare(2).unwrap_err().kind(), Kind::Busy, "the pool has not closed it");
        book.release(&path);
        prepare(2).unwrap();

        // A disk that the pool has open was pulled, and another one is in its place.
        book.joined(&path);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let other_name = NewDisk { path: link.display().to_string(), ..new.clone() };
        assert_eq!(book.inspect(&other_name).unwrap_err().kind(), Kind::Busy);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, vec![0; 4 << 20]).unwrap();
        assert_eq!(book.inspect(&other_name).unwrap(), 4 << 20);
        prepare(3).unwrap();
        book.joined(&path);
        assert_eq!(prepare(4).unwrap_err().kind(), Kind::Busy);
    }

    #[test]
    fn only_a_disk_of_the_pool_that_is_in_use_keeps_it_from_starting() {
        let directory = tempfile::tempdir().unwrap();
        let book = Book::new(&DataDir::open(directory.path()).unwrap());
        let [disk, taken, dead, away] =
            ["disk", "taken", "dead", "away"].map(|name| directory.path().join(name).display().to_string());
        std::fs::write(&disk, [0; 4096]).unwrap();
        std::fs::write(&taken, [0; 4096]).unwrap();
        // It is there, and opening it fails.
        let _socket = std::os::unix::net::UnixListener::bind(&dead).unwrap();
        let others = Lock::device(&taken).unwrap();
        let all = [&disk, &taken, &dead, &away].map(String::clone);
        let refused = book.hold(all.to_vec(), &[disk.clone(), taken.clone()]).unwrap_err();
        assert!(refused.kind() == Kind::Busy && refused.to_string().contains("/taken"), "{refused}");
        drop(book);
        let book = Book::new(&DataDir::open(directory.path()).unwrap());
        assert!(
            book.hold(all.to_vec(), &[disk.clone(), dead]).is_err(),
            "a member whose label was just read is not left out"
        );
        drop(book);
        let book = Book::new(&DataDir::open(directory.path()).unwrap());
        assert_eq!(book.hold(all.to_vec(), std::slice::from_ref(&disk)).unwrap(), std::slice::from_ref(&disk));
        drop(others);
        Lock::device(&taken).unwrap();
        assert_eq!(Lock::device(&disk).unwrap_err().kind(), Kind::Busy);
        book.release(&disk);
        Lock::device(&disk).unwrap();
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
        book.note([(Uuid::from_u128(1), one.display().to_string())]).unwrap();
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
