//! Files that are written whole or not at all.

use crate::signals::Endings;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// A file that takes its place when it is kept, and leaves nothing behind otherwise. Errors name the place, never what
/// the file is called until then.
pub struct NewFile {
    path: PathBuf,
    file: NamedTempFile,
}

impl NewFile {
    /// A file for `path`. Refused: what is there and is no file, as a pipe or a device, and a folder that takes none.
    pub fn create(path: &Path) -> Result<Self> {
        let at = || path.display().to_string();
        let replaceable = path.symlink_metadata().map_or(true, |metadata| metadata.is_file());
        ensure!(replaceable, "{}: is not a file: name another", at());
        ensure!(path != Path::new("-"), "-: is written as a file here: name one");
        ensure!(path.file_name().is_some(), "{}: is not a file's name", at());
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // As any new file, with the umask's permissions; `tempfile_in` would tell the temporary's name in errors.
        let file = Builder::new().prefix(".kura-").make_in(folder, |path| File::create_new(path)).with_context(at)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Where its content goes, for who writes it on another thread.
    pub fn writer(&self) -> Result<File> {
        self.file.as_file().try_clone().with_context(|| self.path.display().to_string())
    }

    /// Puts it in its place, in that of a file that is there.
    pub fn keep(self) -> Result<()> {
        let Self { path, file } = self;
        let kept = file.as_file().sync_all().and_then(|()| Ok(file.persist(&path).map(drop)?));
        kept.with_context(|| path.display().to_string())
    }
}

/// Does what makes a [`NewFile`]. Ctrl-C and SIGTERM end the process, as ever, but not before the file is gone.
pub async fn unless_ended<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut endings = Endings::catch()?;
    let ending = tokio::select! {
        done = work => return done,
        ending = endings.next() => ending,
    };
    std::process::exit(ending.status())
}

/// Straight to the file: the temporary's own writer would tell its name in errors.
impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_file_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_file_mut().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::NewFile;
    use std::fs::{self, read_dir};
    use std::io::Write;
    use std::path::Path;

    #[test]
    fn it_replaces_a_file_whole_and_leaves_nothing_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, beside) = (folder.path().join("out"), folder.path().join("out.new"));
        fs::write(&path, "old").unwrap();
        fs::write(&beside, "another's").unwrap();
        let mut dropped = NewFile::create(&path).unwrap();
        dropped.write_all(b"half").unwrap();
        drop(dropped);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        let mut kept = NewFile::create(&path).unwrap();
        kept.write_all(b"new").unwrap();
        kept.keep().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_to_string(&beside).unwrap(), "another's");
        assert_eq!(read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_is_no_file_is_refused_by_its_own_name() {
        let folder = tempfile::tempdir().unwrap();
        let absent = folder.path().join("absent/out");
        for (path, why) in [
            (Path::new("/dev/null"), "is not a file"),
            (folder.path(), "is not a file"),
            (Path::new(".."), "is not a file"),
            (&absent, "No such file or directory (os error 2)"),
        ] {
            let said = format!("{:#}", NewFile::create(path).err().expect("refused"));
            assert!(said.starts_with(&path.display().to_string()) && said.contains(why), "{said}");
            assert!(!said.contains(".kura-"), "{said}");
        }
    }
}
