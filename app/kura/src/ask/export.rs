//! `kura pool export`: a pool goes to another machine. What its disks do not have goes along in a file.
//!
//! ```text
//!   here   kura pool export ─> export.json, and a mark: no server begins here
//!   there  the disks, kura pool import --export export.json DISKS ─> a data directory with all it had
//! ```

use crate::cli::PoolExport;
use crate::new_file::NewFile;
use crate::serve::data::{DataDir, replace_file};
use crate::serve::disks::Book;
use crate::serve::s3;
use crate::show::Out;
use anyhow::{Context, Result, bail, ensure};
use kura_controller::FoundPool;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Component, Path, PathBuf};
use uuid::Uuid;

/// What a file that was written by this program says it is.
const FORMAT: u32 = 2;
/// Files of the data directory that no disk has; and, of each job, those that a run goes on from.
const FILES: [&str; 2] = ["schedules.json", "replicas.json"];
const OF_JOBS: [&str; 4] = ["job.toml", "recovery-point", "last.json", "costs.json"];
/// The same of buckets: no text.
const BYTES_OF_JOBS: [&str; 2] = ["objects", "uploads"];

/// What a data directory alone knows.
#[derive(Debug, Serialize, Deserialize)]
pub struct Exported {
    kura_export: u32,
    /// The pool's disks, by which it is known, and where they were.
    disks: BTreeMap<Uuid, String>,
    /// The files, by their paths in the directory.
    files: BTreeMap<PathBuf, String>,
    /// Those that are no text, in base64.
    #[serde(default)]
    bytes: BTreeMap<PathBuf, String>,
}

/// Exports the pool of a data directory, or takes that back.
pub fn export(export: &PoolExport, out: Out) -> Result<()> {
    ensure!(export.data.join("version").exists(), "{}: holds no pool: name its --data", export.data.display());
    // It holds the lock: no server runs on it, and none begins.
    let data = DataDir::open_exported(&export.data)?;
    let shown = data.path().display();
    if export.cancel {
        ensure!(data.is_exported(), "{shown}: its pool was not exported");
        data.mark_exported(false)?;
        let said = serde_json::json!({ "data": data.path(), "exported": false });
        return out.show(&said, |_| format!("{shown} has its pool again: serve it with `kura serve --data {shown}`"));
    }
    let keys = data.join(s3::KEYS);
    ensure!(
        !keys.exists(),
        "{}: access keys are only there since a rollback of the object store, which was cut off or found no room for them: \
         start the server with S3, make room if the pool is full, and stop it; where the store is lost for good, remove the file",
        keys.display()
    );
    let exported = Exported::of(&data)?;
    ensure!(!exported.disks.is_empty(), "{shown}: does not know its disks: start the server once, and stop it");
    let output = export.output.clone().unwrap_or_else(|| data.join("export.json"));
    let output = std::path::absolute(output)?;
    write(&output, &serde_json::to_vec_pretty(&exported)?)?;
    data.mark_exported(true)?;
    let disks: Vec<String> = exported.disks.into_values().collect();
    let said = serde_json::json!({ "data": data.path(), "exported": true, "file": output, "disks": disks });
    out.show(&said, |_| {
        format!(
            "exported: nothing serves {shown} until `kura pool export --cancel`\n{} disks are to be taken along:\n  {}\n\
             then, where they are: kura pool import --export {} DISKS",
            disks.len(),
            disks.join("\n  "),
            output.file_name().map_or(&*output, Path::new).display()
        )
    })
}

/// Writes a file of somebody else's choice, durably: without it the import lacks what it has.
fn write(output: &Path, exported: &[u8]) -> Result<()> {
    let at = || output.display().to_string();
    let mut file = NewFile::create(output)?;
    file.write_all(exported).with_context(at)?;
    file.keep()?;
    File::open(output.parent().unwrap_or(Path::new("/"))).and_then(|folder| folder.sync_all()).with_context(at)
}

impl Exported {
    fn of(data: &DataDir) -> Result<Self> {
        let jobs = std::fs::read_dir(data.join("replicate")).into_iter().flatten().flatten();
        let jobs = jobs.filter(|job| job.path().join(OF_JOBS[0]).exists());
        let jobs: Vec<PathBuf> = jobs.map(|job| Path::new("replicate").join(job.file_name())).collect();
        let of_jobs = |names: &[&str]| -> Vec<PathBuf> {
            jobs.iter().flat_map(|folder| names.iter().map(|name| folder.join(name))).collect()
        };
        let texts = FILES.iter().map(PathBuf::from).chain(of_jobs(&OF_JOBS));
        let coded = |path: &Path| Ok(base64_simd::STANDARD.encode_to_string(std::fs::read(path)?));
        Ok(Self {
            kura_export: FORMAT,
            disks: Book::open(data)?.known(),
            files: read_all(data, texts, |path| std::fs::read_to_string(path))?,
            bytes: read_all(data, of_jobs(&BYTES_OF_JOBS), coded)?,
        })
    }

    /// What `kura pool export` wrote of this pool. Volumes have the same numbers in all pools, so that another one's copies and
    /// schedules would be taken for its own.
    pub fn read(path: &Path, pool: &FoundPool) -> Result<Self> {
        let at = || path.display().to_string();
        let text = std::fs::read(path).with_context(at)?;
        let read: Self = serde_json::from_slice(&text)
            .with_context(|| format!("{}: is not what `kura pool export` writes", path.display()))?;
        if read.kura_export != FORMAT {
            bail!("{}: has format {} and this kura reads {FORMAT}: use the kura that wrote it", at(), read.kura_export);
        }
        let strays = |path: &&PathBuf| !path.components().all(|part| matches!(part, Component::Normal(_)));
        if let Some(stray) = read.files.keys().chain(read.bytes.keys()).find(strays) {
            bail!("{}: names {}, which is not a file of a data directory", at(), stray.display());
        }
        ensure!(
            pool.disks.iter().any(|disk| read.disks.contains_key(&Uuid::from_bytes(disk.uuid))),
            "{}: was exported from another pool: none of its disks is in pool {}",
            at(),
            Uuid::from_bytes(pool.uuid)
        );
        Ok(read)
    }

    /// Puts the files into a data directory.
    pub fn put(&self, data: &DataDir) -> Result<()> {
        let put = |path: &Path, content: &[u8]| {
            let at = data.path().join(path);
            let made = at.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| replace_file(&at, content)).with_context(|| at.display().to_string())
        };
        self.files.iter().try_for_each(|(path, text)| put(path, text.as_bytes()))?;
        self.bytes.iter().try_for_each(|(path, coded)| {
            let content = base64_simd::STANDARD.decode_to_vec(coded);
            put(path, &content.with_context(|| format!("{}: is not base64 in the export", path.display()))?)
        })
    }
}

/// What `read` makes of those files of the data directory that are there.
fn read_all(
    data: &DataDir,
    paths: impl IntoIterator<Item = PathBuf>,
    read: impl Fn(&Path) -> std::io::Result<String>,
) -> Result<BTreeMap<PathBuf, String>> {
    let there = paths.into_iter().map(|path| (data.path().join(&path), path)).filter(|(at, _)| at.exists());
    there.map(|(at, path)| Ok((path, read(&at).with_context(|| at.display().to_string())?))).collect()
}
