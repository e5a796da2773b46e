//! The data directory: one server, one version.
//!
//! ```text
//!   DIR/lock        held by the server that runs, and says which process that is
//!   DIR/version     what made the directory; written when it is whole
//!   DIR/begun       the pools that were begun to be made here, until one is whole
//!   DIR/exported    its pool is another machine's: no server begins here
//!   DIR/admin.sock  DIR/nbd.sock  the doors of this machine
//!   DIR/disks.json  where the pool's disks are
//!   DIR/disks/      the default pool's sparse files
//!   DIR/schedules.json  the schedules of snapshots
//!   DIR/replicas.json   the volumes that are copies of others
//!   DIR/replicate/      the jobs that copy from here, and what they know
//! ```

use anyhow::{Context, Result, bail};
use kura_disk::Lock;
use std::collections::BTreeSet;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// What this program writes and reads.
const VERSION: &str = "kura data 1\n";
/// The file that has the UUIDs of the pools that were begun to be made, a line each.
const BEGUN: &str = "begun";
/// The file that says that the pool is another machine's.
const EXPORTED: &str = "exported";
/// What stands in the version file while a new directory is being filled: a crash then begins anew.
const UNFINISHED: &str = "kura data 1, being made\n";

/// A data directory that this process holds.
pub struct DataDir {
    path: PathBuf,
    is_new: bool,
    _lock: Lock,
}

impl DataDir {
    /// Takes `path`, which is made if there is none. Refused where its pool was exported.
    pub fn open(path: &Path) -> Result<Self> {
        let data = Self::open_exported(path)?;
        let shown = data.path.display();
        if data.is_exported() {
            bail!(
                "{shown}: its pool was exported: serve it where it was imported, or run `kura pool export --cancel --data {shown}`"
            );
        }
        Ok(data)
    }

    /// The same, also where the pool was exported.
    pub fn open_exported(path: &Path) -> Result<Self> {
        // What is stored is nobody else's to read.
        DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(|| path.display().to_string())?;
        let path = path.canonicalize().with_context(|| path.display().to_string())?;
        let lock = Lock::directory(&path)?;
        let is_new = is_new(&path)?;
        if is_new {
            write_version(&path, UNFINISHED)?;
            discard_remains(&path)?;
        }
        Ok(Self { path, is_new, _lock: lock })
    }

    /// Refuses a directory in which no pool can be made, and makes none.
    pub fn check_new(path: &Path) -> Result<()> {
        if path.exists() && !is_new(path)? {
            bail!("{} holds a pool already: name another --data", path.canonicalize()?.display());
        }
        Ok(())
    }

    /// True where `path` has a pool, and where it cannot be told: then a server makes none.
    pub fn may_have_pool(path: &Path) -> bool {
        !is_new(path).unwrap_or(false)
    }

    /// The pools that were begun to be made in `path`, none of which came to its end: what is on their disks is nobody's.
    pub fn begun(path: &Path) -> Result<BTreeSet<Uuid>> {
        let name = path.join(BEGUN);
        if !matches!(version(path)?, Version::Unfinished) {
            return Ok(BTreeSet::new());
        }
        match std::fs::read_to_string(&name) {
            Ok(text) => text.lines().map(|line| line.parse().with_context(|| name.display().to_string())).collect(),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(error).with_context(|| name.display().to_string()),
        }
    }

    /// Notes, durably, that a pool is about to be made: before its first disk is written to.
    pub fn begin(&self, pool: Uuid) -> Result<()> {
        let mut begun = Self::begun(&self.path)?;
        begun.insert(pool);
        let mut lines: Vec<String> = begun.iter().map(Uuid::to_string).collect();
        // The last line ends as the others do.
        lines.push(String::new());
        let name = self.join(BEGUN);
        replace_file(&name, lines.join("\n").as_bytes())
            .with_context(|| format!("{}: cannot be written", name.display()))
    }

    /// Takes `path`, which is made if there is none, for a pool that is there already. What is in it stays; until
    /// [`DataDir::finish`] no server makes a pool in it once it has a book of disks.
    pub fn adopt(path: &Path) -> Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(|| path.display().to_string())?;
        let path = path.canonicalize().with_context(|| path.display().to_string())?;
        let lock = Lock::directory(&path)?;
        match version(&path)? {
            Version::None => {}
            // A server would begin anew, and remove the disks that it finds.
            Version::Unfinished => {
                forget_begun(&path)?;
                remove_file(&path.join("version")).with_context(|| path.display().to_string())?;
            }
            Version::Finished => bail!("{} holds a pool already: name another --data", path.display()),
        }
        Ok(Self { path, is_new: true, _lock: lock })
    }

    /// True until [`DataDir::finish`]: nothing in it is anybody's yet.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Says that the directory is whole: from now on it is opened, not made.
    pub fn finish(&mut self) -> Result<()> {
        write_version(&self.path, VERSION)?;
        self.is_new = false;
        forget_begun(&self.path)?;
        Ok(())
    }

    /// True where the pool was exported.
    pub fn is_exported(&self) -> bool {
        self.join(EXPORTED).exists()
    }

    /// Says, durably, whether the pool is another machine's.
    pub fn mark_exported(&self, exported: bool) -> Result<()> {
        let mark = self.join(EXPORTED);
        let done = if exported {
            replace_file(&mark, b"")
        } else {
            remove_file(&mark).and_then(|()| File::open(&self.path)?.sync_all())
        };
        done.with_context(|| mark.display().to_string())
    }

    /// The directory's absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of `name` in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// What a directory's version file says.
enum Version {
    /// There is none.
    None,
    Unfinished,
    Finished,
}

fn version(path: &Path) -> Result<Version> {
    let name = path.join("version");
    match std::fs::read_to_string(&name) {
        Ok(version) if version == VERSION => Ok(Version::Finished),
        Ok(version) if version == UNFINISHED => Ok(Version::Unfinished),
        Ok(version) => bail!(
            "{} is of another version: it says {:?}, this kura reads {:?}; use the kura that made it, or choose another \
             directory with --data",
            path.display(),
            version.trim(),
            VERSION.trim()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Version::None),
        Err(error) => Err(error).with_context(|| name.display().to_string()),
    }
}

/// True when there is nothing in the directory that a server finished making.
fn is_new(path: &Path) -> Result<bool> {
    match version(path)? {
        Version::Finished => return Ok(false),
        Version::Unfinished => return Ok(true),
        Version::None => {}
    }
    // A configuration, a mounted file system's own folder: fine. Disks of a pool, and nothing that tells of them: not.
    if let Some(ours) = ["disks", "disks.json"].iter().find(|name| path.join(name).exists()) {
        bail!(
            "{0} holds {ours} and no version file: it is incomplete; name the pool's disks to `kura pool import --data {0}`, \
             or choose another directory with --data",
            path.display()
        );
    }
    Ok(true)
}

/// Removes what a server left that did not finish making the directory: nobody has seen it.
fn discard_remains(path: &Path) -> Result<()> {
    let (disks, book) = (path.join("disks"), path.join("disks.json"));
    for removed in [std::fs::remove_dir_all(&disks), std::fs::remove_file(&book)] {
        match removed {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context(path.display().to_string()),
            _ => {}
        }
    }
    Ok(())
}

/// Forgets which pools were begun.
fn forget_begun(path: &Path) -> Result<()> {
    let name = path.join(BEGUN);
    match remove_file(&name) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).with_context(|| name.display().to_string()),
        _ => Ok(()),
    }
}

/// Replaces the version file by one that says `version`, durably and all at once.
fn write_version(path: &Path, version: &str) -> Result<()> {
    let name = path.join("version");
    replace_file(&name, version.as_bytes()).with_context(|| format!("{}: cannot be written", name.display()))
}

/// Replaces a file of the data directory by one that holds `bytes`, durably and all at once.
pub fn replace_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    replace(path, bytes, File::options().create(true).truncate(true))
}

/// The same, of a file that is nobody else's to read, whoever may read the directory.
pub fn replace_secret(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // One that is there has the permissions that it has.
    remove_unfinished(path)?;
    replace(path, bytes, File::options().create_new(true).mode(0o600))
}

/// Removes what a crash left of a file that was being replaced.
pub fn remove_unfinished(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path.with_extension("new")) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn replace(path: &Path, bytes: &[u8], how: &mut OpenOptions) -> std::io::Result<()> {
    let written = path.with_extension("new");
    let mut file = how.write(true).open(&written)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&written, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Removes a file of the data directory, durably.
pub fn remove_file(path: &Path) -> std::io::Result<()> {
    std::fs::remove_file(path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        match DataDir::open(path) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_directory_is_new_until_it_is_finished() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        assert!(DataDir::open(&path).unwrap().is_new());
        std::fs::create_dir(path.join("disks")).unwrap();
        let mut again = DataDir::open(&path).unwrap();
        assert!(!path.join("disks").exists(), "what the first began is gone");
        assert!(again.is_new(), "the first was not finished");
        again.finish().unwrap();
        assert!(!again.is_new());
        drop(again);
        assert!(!DataDir::open(&path).unwrap().is_new());
    }

    #[test]
    fn pools_that_were_begun_are_known_until_one_is_whole() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        let (one, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert!(!DataDir::may_have_pool(&path));
        DataDir::open(&path).unwrap().begin(one).unwrap();
        assert!(!DataDir::may_have_pool(&path));
        let mut data = DataDir::open(&path).unwrap();
        data.begin(other).unwrap();
        assert_eq!(DataDir::begun(&path).unwrap(), BTreeSet::from([one, other]));
        data.finish().unwrap();
        assert!(DataDir::begun(&path).unwrap().is_empty() && DataDir::may_have_pool(&path));
        drop(data);
        // Nor where an import took the directory.
        let path = parent.path().join("other");
        DataDir::open(&path).unwrap().begin(one).unwrap();
        drop(DataDir::adopt(&path).unwrap());
        DataDir::open(&path).unwrap();
        assert!(DataDir::begun(&path).unwrap().is_empty());
    }

    #[test]
    fn a_secret_is_its_owners_whatever_a_crash_left() {
        let folder = tempfile::tempdir().unwrap();
        let (path, left) = (folder.path().join("keys.json"), folder.path().join("keys.new"));
        std::fs::write(&left, "half").unwrap();
        std::fs::write(&path, "old").unwrap();
        replace_secret(&path, b"new").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!((std::fs::read_to_string(&path).unwrap(), mode & 0o777), ("new".to_owned(), 0o600));
        std::fs::write(&left, "half").unwrap();
        remove_unfinished(&path).unwrap();
        remove_unfinished(&path).unwrap();
        assert!(!left.exists() && path.exists());
    }

    #[test]
    fn two_servers_do_not_share_a_directory() {
        let path = tempfile::tempdir().unwrap();
        let first = DataDir::open(path.path()).unwrap();
        let refused = refusal(path.path());
        assert!(refused.contains(&format!("is in use by process {} ", std::process::id())), "{refused}");
        drop(first);
        assert_eq!(refusal(path.path()), "");
    }

    #[test]
    fn what_is_not_ours_is_refused_and_left_alone() {
        let path = tempfile::tempdir().unwrap();
        std::fs::write(path.path().join("version"), "kura data 9\n").unwrap();
        let refused = refusal(path.path());
        assert!(refused.contains("is of another version: it says \"kura data 9\", this kura reads"), "{refused}");
        assert_eq!(std::fs::read_to_string(path.path().join("version")).unwrap(), "kura data 9\n");

        let path = tempfile::tempdir().unwrap();
        std::fs::create_dir(path.path().join("disks")).unwrap();
        let refused = refusal(path.path());
        assert!(refused.contains("holds disks and no version file: it is incomplete"), "{refused}");
        assert!(path.path().join("disks").exists());
    }

    #[test]
    fn an_import_that_is_cut_off_leaves_nothing_that_is_served_or_removed() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("data");
        // Before the book: as if nothing had happened.
        drop(DataDir::adopt(&path).unwrap());
        assert!(!path.join("version").exists());
        // With the book, and beside disks that a crash left of a pool being made: no server takes it, and all stays.
        drop(DataDir::open(&path).unwrap());
        std::fs::create_dir(path.join("disks")).unwrap();
        let data = DataDir::adopt(&path).unwrap();
        replace_file(&data.join("disks.json"), b"{}").unwrap();
        drop(data);
        let refused = refusal(&path);
        assert!(refused.contains("is incomplete") && refused.contains("kura pool import"), "{refused}");
        assert!(path.join("disks").exists() && path.join("disks.json").exists());
        // And it can be done again.
        let mut data = DataDir::adopt(&path).unwrap();
        data.finish().unwrap();
        drop(data);
        assert!(!DataDir::open(&path).unwrap().is_new());
        let Err(again) = DataDir::adopt(&path) else { panic!("adopted twice") };
        assert!(again.to_string().contains("holds a pool already"), "{again}");
        assert!(path.join("disks").exists());
    }
}
