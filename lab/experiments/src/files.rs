//! Files that are there whole or not at all.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Writes the file, making its folders; a cut leaves the old one or the new one.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    Unfinished::new(path.to_owned(), bytes)?.keep()
}

/// A file that is written, but not yet where it is to be. It is gone when it is dropped.
pub struct Unfinished {
    path: PathBuf,
    file: NamedTempFile,
}

impl Unfinished {
    /// Writes what is to be at `path`, making its folders.
    pub fn new(path: PathBuf, bytes: &[u8]) -> Result<Self> {
        let written = || -> std::io::Result<NamedTempFile> {
            let folder = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)?;
            let mut file = unfinished(folder)?;
            file.as_file_mut().write_all(bytes)?;
            file.as_file().sync_data()?;
            Ok(file)
        };
        let file = written().with_context(|| format!("writing {}", path.display()))?;
        Ok(Self { path, file })
    }

    /// Puts it where it is to be, in place of what is there.
    pub fn keep(self) -> Result<()> {
        let Self { path, file } = self;
        file.persist(&path).with_context(|| format!("writing {}", path.display()))?;
        Ok(())
    }
}

/// As any new file, with the umask's permissions: a report is to be shown. `tempfile_in` would tell the file's name in errors.
fn unfinished(folder: &Path) -> std::io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(".unfinished-").make_in(folder, |path| File::create_new(path))
}

/// An error where no file can be made in `folder`, or where the folder itself cannot be made. Leaves nothing behind.
pub fn probe(folder: &Path) -> Result<()> {
    let there = folder.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(Path::new("."));
    let mut file = unfinished(there)
        .with_context(|| format!("{}: no file can be made there: name another folder", folder.display()))?;
    // A disk that is full takes names, but no bytes.
    let wrote = file.as_file_mut().write_all(&[0; 4096]).and_then(|()| file.as_file().sync_data());
    wrote.with_context(|| format!("{}: nothing can be written there: name another folder", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_takes_no_file_is_told_by_its_own_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        write(&file, b"bytes").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"bytes");
        for said in
            [format!("{:#}", probe(&file).unwrap_err()), format!("{:#}", write(&file.join("x"), b"").unwrap_err())]
        {
            assert!(said.contains(&file.display().to_string()) && !said.contains(".unfinished-"), "{said}");
        }
    }
}
