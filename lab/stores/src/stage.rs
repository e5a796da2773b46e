//! One size of object, one number of clients, every side in turn on the same bytes of the same device.

use crate::bdb::{Bdb, Program};
use crate::device::Bare;
use crate::files::Files;
use crate::image::{Device, Image};
use crate::kura::{self, Kura};
use crate::work::{Backend, Content, Phase, Work};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// A store, or what there is without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Ours.
    Kura,
    /// Berkeley DB 5.3.
    BerkeleyDb,
    /// Files on Btrfs.
    Btrfs,
    /// Files on ext3.
    Ext3,
    /// The bare device.
    Device,
}

impl Side {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Kura, Self::BerkeleyDb, Self::Btrfs, Self::Ext3, Self::Device];
    /// The paper's three.
    pub const PAPERS: [Self; 3] = [Self::BerkeleyDb, Self::Btrfs, Self::Ext3];
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kura => "kura",
            Self::BerkeleyDb => "Berkeley DB",
            Self::Btrfs => "Btrfs",
            Self::Ext3 => "Ext3",
            Self::Device => "device",
        })
    }
}

/// What a side came to, once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Objects put into an empty store.
    pub create: Phase,
    /// The same, read cold.
    pub read: Phase,
    /// Bytes that the device was asked to write for each byte of content that was created, until all was settled.
    pub write_amplification: f64,
    /// What became of it in time.
    pub aged: Option<Aged>,
}

/// The same after the store was overwritten three times over.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aged {
    /// Each object put again.
    pub create: Phase,
    /// The same, read cold.
    pub read: Phase,
}

/// Where the sides are measured with one kind of work.
pub struct Stage {
    work: Work,
    content: Content,
    image: Image,
    bdb: Program,
}

impl Stage {
    /// Sets it up on the device of `folder`; it is gone when dropped, or with the process. One line tells what is
    /// missing.
    pub fn new(folder: &Path, work: Work) -> Result<Self> {
        work.check()?;
        ensure!(rustix::process::geteuid().is_root(), "object stores are measured on loop devices: run it as root");
        let bdb = Program::build()?;
        // Berkeley DB has what it stores in its log as well; ours is to be full of it.
        let front_bytes = kura::store_bytes(&work);
        let whole_bytes = (work.size_bytes * work.count) as u64 * 3 / 2 + (640 << 20);
        let image = Image::new(folder, whole_bytes.max(front_bytes), front_bytes)?;
        Ok(Self { work, content: Content::of(&work), image, bdb })
    }

    /// Measures a side once, from nothing; ours also when it is aged.
    pub fn measure(&self, side: Side) -> Result<Measured> {
        self.measured(side).with_context(|| side.to_string())
    }

    /// A side's store, empty.
    pub(crate) fn store(&self, side: Side) -> Result<Box<dyn Backend + '_>> {
        let Self { work, content, bdb, .. } = self;
        let device = self.device(side);
        Ok(match side {
            Side::Kura => Box::new(Kura::new(device, *work, content)?),
            Side::BerkeleyDb => Box::new(Bdb::new(device, bdb, *work, content)?),
            Side::Btrfs => Box::new(Files::new(device, "btrfs", *work, content)?),
            Side::Ext3 => Box::new(Files::new(device, "ext3", *work, content)?),
            Side::Device => Box::new(Bare::new(device, *work, content)?),
        })
    }

    fn device(&self, side: Side) -> &Device {
        if side == Side::Kura { &self.image.front } else { &self.image.whole }
    }

    fn measured(&self, side: Side) -> Result<Measured> {
        let mut store = self.store(side)?;
        let device = self.device(side);
        let before = device.written_bytes()?;
        let create = store.create(1)?;
        let written_bytes = device.written_bytes()? - before;
        let content_bytes = self.work.size_bytes * self.work.count;
        let mut measured = Measured {
            create,
            read: store.read(1)?,
            write_amplification: written_bytes as f64 / content_bytes as f64,
            aged: None,
        };
        if side == Side::Kura {
            store.age(2)?;
            measured.aged = Some(Aged { create: store.create(3)?, read: store.read(3)? });
        }
        Ok(measured)
    }
}
