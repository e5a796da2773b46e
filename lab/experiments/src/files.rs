//! Files that are there whole or not at all.

use anyhow::{Context, Result};
use std::io::Write;
use std::path::Path;

/// Writes the file, making its folders; a cut leaves the old one or the new one.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = || -> std::io::Result<()> {
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new().prefix(".unfinished-").tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_data()?;
        readable_by_all(file.as_file())?;
        file.persist(path)?;
        Ok(())
    };
    written().with_context(|| format!("writing {}", path.display()))
}

/// A temporary file is its owner's alone; a report is to be shown.
fn readable_by_all(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}
