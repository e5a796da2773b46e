//! The node of a configuration, with models in place of its disks.

use crate::cli::ModelArg;
use crate::config::{Disk, Pool};
use crate::disks::default_disks;
use anyhow::{Context, Result};
use kura_controller::DiskClass;
use kura_replay::{NodeDisk, NodeSpec};
use kura_sim::Model;

/// What the pool of a configuration is made of. It has one controller unless the configuration says more: a server takes
/// as many as there are cores, and results are not to depend on these.
pub fn node(pool: &Pool, models: &[ModelArg]) -> Result<NodeSpec> {
    let mut disks = Vec::new();
    for (class, size_bytes, model) in members(pool)? {
        let asked = models.iter().rev().find(|asked| asked.class == class).map(|asked| asked.model);
        let model = asked.or(model).unwrap_or(match class {
            DiskClass::Fast => Model::Nvme,
            DiskClass::Slow => Model::Hdd7200,
        });
        let name = match class {
            DiskClass::Fast => "fast",
            DiskClass::Slow => "slow",
        };
        let number = disks.iter().filter(|disk: &&NodeDisk| disk.class == class).count();
        disks.push(NodeDisk { name: format!("{name}{number}"), class, size_bytes, model });
    }
    Ok(NodeSpec {
        controllers: pool.controllers.as_ref().map_or(1, |controllers| *controllers.get_ref()),
        extent_bytes: pool.extent.get_ref().0,
        journal_bytes: pool.journal.get_ref().0,
        write_buffer_bytes: pool.write_buffer.get_ref().0,
        rebuild_width: *pool.rebuild_width.get_ref(),
        raid_width: pool.raid_width.as_ref().map(|width| *width.get_ref()),
        disk_queue: *pool.disk_queue.get_ref(),
        hot: pool.hot.settings(),
        disks,
    })
}

/// Class, size in bytes and, where it says one, model of each disk.
fn members(pool: &Pool) -> Result<Vec<(DiskClass, u64, Option<Model>)>> {
    if pool.disks.is_empty() {
        return Ok(default_disks().map(|(_, class, size)| (class, size.0, None)).collect());
    }
    let member = |disk: &Disk| {
        let model = disk.model.as_ref().map(|model| *model.get_ref());
        let size_bytes = match disk.path() {
            // What is there counts: the size is for the file that is made where nothing is.
            Some(path) if path.exists() => Some(kura_disk::probe(path)?.size_bytes),
            _ => disk.size().map(|size| size.0).or(model.and_then(|model| model.size_bytes())),
        };
        let size_bytes = size_bytes.context("a disk without a size: add size = \"...\" to it")?;
        Ok(((*disk.class.get_ref()).into(), size_bytes, model))
    };
    pool.disks.iter().map(member).collect()
}
