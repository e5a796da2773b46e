//! The disk arrays that are compared: all hold as much data (003 section 3.2).

use kura_replay::{DiskClass, HotSettings, Layout, NodeDisk, NodeSpec, Settings};
use kura_sim::{Model, RotatingSpec};

/// A disk array.
#[derive(Clone, Copy, Debug)]
pub struct System {
    /// Its name in tables and in the names of points.
    pub name: &'static str,
    /// What it is called in figures.
    pub title: &'static str,
    /// How the volume's data lies on the disks.
    pub layout: Layout,
    /// Disks.
    pub disks: u64,
    /// Tracks a cylinder of each.
    pub tracks: u64,
    /// The write buffer, as a part of the data's capacity.
    pub write_buffer: f64,
    /// Groups that a rebuild moves at once.
    pub rebuild_width: usize,
    /// Disks are mixed in its groups, instead of the same ones lying together.
    pub scatter: bool,
    /// Requests that a disk is given at once, clients' first; 0 gives it all in the order in which they come.
    pub disk_queue: usize,
    /// The numbers of the hot area, where it has one.
    pub hot: HotSettings,
    /// Room in which data and parity float, in percent of the data and parity.
    pub floating_percent: u8,
}

/// 3 * (5D+P).
pub const RAID5: System = System {
    name: "raid5",
    title: "RAID5",
    layout: Layout::Raid5,
    disks: 18,
    tracks: 2,
    write_buffer: 0.0015,
    rebuild_width: 1,
    scatter: false,
    disk_queue: 0,
    hot: HotSettings::MOGI1996,
    floating_percent: 0,
};

/// The same disks, with the tenth of them that hot mirroring has for its mirrored area as room to float.
pub const FLOATING: System = System {
    name: "floating",
    title: "floating",
    layout: Layout::Floating,
    write_buffer: 0.001,
    floating_percent: 11,
    ..RAID5
};

/// Mirror with one and a half times the disks.
pub const MIRROR_DISKS: System = System {
    name: "mirror-x1.5-disks",
    title: "mirror, 1.5 x the disks",
    layout: Layout::Mirror,
    disks: 27,
    tracks: 2,
    write_buffer: 0.001,
    ..RAID5
};

/// Mirror with one and a half times the tracks.
pub const MIRROR_TRACKS: System =
    System { name: "mirror-x1.5-tracks", title: "mirror, 1.5 x the tracks", disks: 18, tracks: 3, ..MIRROR_DISKS };

/// 3 * (5D+P), of which each disk gives a tenth to the mirrored hot area: the paper's scheme.
pub const HOT_PAPER: System = System {
    name: "hot-mirror-1996",
    title: "hot mirroring, as in the paper",
    layout: Layout::HotMirror,
    write_buffer: 0.001,
    ..RAID5
};

/// The same disks and the same share of them, with what kura does beyond the paper: among it queues before the disks, which a
/// pool has only when it is told to (`pool.disk_queue` is 0 by default).
pub const HOT: System = System {
    name: "hot-mirror",
    title: "hot mirroring, kura",
    rebuild_width: 3,
    scatter: true,
    disk_queue: 1,
    hot: HotSettings::TODAY,
    ..HOT_PAPER
};

/// RAID5 with the queues and the rebuild that [`HOT`] has.
pub const RAID5_QUEUED: System = RAID5.queued("raid5-queued", "RAID5, queued");

/// Floating data and parity with the same.
pub const FLOATING_QUEUED: System = FLOATING.queued("floating-queued", "floating, queued");

/// The mirror with more disks, with the same.
pub const MIRROR_QUEUED: System = MIRROR_DISKS.queued("mirror-x1.5-disks-queued", "mirror, 1.5 x the disks, queued");

/// Each scheme of hot mirroring with the RAID5, the floating and the mirror that have the same queues and the same rebuild: the layout
/// is what is judged.
pub const ALIKE: [[System; 4]; 2] =
    [[HOT_PAPER, RAID5, FLOATING, MIRROR_DISKS], [HOT, RAID5_QUEUED, FLOATING_QUEUED, MIRROR_QUEUED]];

/// All of them, in the order of the figures' legends.
pub const SYSTEMS: &[System] =
    &[RAID5, FLOATING, MIRROR_DISKS, MIRROR_TRACKS, HOT_PAPER, HOT, RAID5_QUEUED, FLOATING_QUEUED, MIRROR_QUEUED];

/// Disks of an array whose tracks are not multiplied, and the part of their bytes that is data: what all are held against.
const DISKS: u64 = 18;
const DATA_SHARE: (u64, u64) = (3, 4);
/// Extents that the data is in: checksum pages of so many are kept in memory.
const EXTENTS: u64 = 4096;
/// Bytes of the journal for each of the write buffer: a checkpoint comes when half of it is used.
const JOURNAL: u64 = 32;
const MIB: u64 = 1 << 20;

impl System {
    /// With the queues, the rebuild and the mixed disks of [`HOT`].
    const fn queued(self, name: &'static str, title: &'static str) -> Self {
        let System { rebuild_width, scatter, disk_queue, .. } = HOT;
        System { name, title, rebuild_width, scatter, disk_queue, ..self }
    }

    /// The node on which `data_bytes` of data fill this array. Its slow disks are the paper's, with as many cylinders as
    /// that takes; seeks are stretched so that they take as long from edge to edge as the paper's, and the skew between cylinders
    /// covers a seek to the next one, as the paper's does.
    ///
    /// Room for kura's own (checksum pages, labels) is beside that of the paper's arrays, which have none.
    pub fn node(&self, data_bytes: u64) -> NodeSpec {
        let write_buffer_bytes = (data_bytes as f64 * self.write_buffer) as u64 / 4096 * 4096;
        let journal_bytes = (write_buffer_bytes * JOURNAL).next_multiple_of(MIB).max(16 * MIB);
        let extent_bytes = extent_bytes(data_bytes);
        let fast = (0..2).map(|number| NodeDisk {
            name: format!("fast{number}"),
            class: DiskClass::Fast,
            size_bytes: 2 * journal_bytes + 64 * MIB,
            model: Model::Nvme,
        });
        let slow = (0..self.disks).map(|number| self.slow_disk(data_bytes, &format!("slow{number}")));
        let disks = fast.chain(slow).collect();
        let settings = Settings {
            write_buffer_bytes,
            rebuild_width: self.rebuild_width,
            scatter: self.scatter,
            disk_queue: self.disk_queue,
            hot: self.hot,
            ..Settings::default()
        };
        NodeSpec {
            controllers: 1,
            extent_bytes,
            journal_bytes,
            floating_percent: self.floating_percent,
            settings,
            // A disk under the heaviest load is slow, not gone; and the paper has no tiers.
            disk_timeout_s: 0,
            tier: None,
            disks,
        }
    }

    /// One of its disks.
    pub fn slow_disk(&self, data_bytes: u64, name: &str) -> NodeDisk {
        let paper = RotatingSpec { tracks_per_cylinder: self.tracks, ..RotatingSpec::paper() };
        let (part, whole) = DATA_SHARE;
        let share_bytes =
            (data_bytes * whole).div_ceil(part * DISKS) * self.tracks / RotatingSpec::paper().tracks_per_cylinder;
        let extent_bytes = extent_bytes(data_bytes);
        let size_bytes = match self.floating_percent {
            0 => with_own(share_bytes, extent_bytes, 0),
            percent => {
                let rows = extent_bytes / 4096;
                let spare_bytes = (rows * u64::from(percent)).div_ceil(100) * 4096;
                let map_bytes = (rows * 2 + 40).next_multiple_of(4096);
                with_own(share_bytes * 100 / (100 + u64::from(percent)), extent_bytes, spare_bytes + 2 * map_bytes)
            }
        };
        let cylinders = size_bytes.div_ceil(self.tracks * paper.track_bytes());
        let stretch = paper.cylinders as f64 / cylinders as f64;
        let spec = RotatingSpec {
            cylinders,
            seek_linear_ms: paper.seek_linear_ms * stretch,
            seek_root_ms: paper.seek_root_ms * stretch.sqrt(),
            ..paper
        }
        .reading_on();
        NodeDisk {
            name: name.to_owned(),
            class: DiskClass::Slow,
            size_bytes: spec.size_bytes(),
            model: Model::Rotating(spec),
        }
    }
}

fn extent_bytes(data_bytes: u64) -> u64 {
    (data_bytes / EXTENTS).next_power_of_two().clamp(64 << 10, 64 * MIB)
}

/// Bytes of a disk that is to hold `share_bytes` of extents: four checksum pages an extent, and what else is `beside_bytes` it,
/// rounded up to extents, and the label's place.
fn with_own(share_bytes: u64, extent_bytes: u64, beside_bytes: u64) -> u64 {
    let page_bytes = (extent_bytes / 4096 * 5 + 64).next_multiple_of(4096);
    let extents = share_bytes.div_ceil(extent_bytes) + 1;
    extents * (extent_bytes + 4 * page_bytes + beside_bytes) + 4 * MIB
}
