//! A disk that turns: the disk model of the hot mirroring paper (Table 4), with its numbers as parameters.

use crate::model::{Io, IoKind, ServiceModel};
use serde::{Deserialize, Serialize};

/// What a disk that turns is like. All its tracks hold the same number of sectors (no zones).
///
/// Sectors are numbered along a track, then along the tracks of a cylinder, then along the cylinders. Each track begins
/// its numbering a little later on the turn than the one before it (skew), so that who reads on finds the next track's
/// first sector soon after the heads have moved.
///
/// ```text
///   track 0   | 0| 1| 2| 3| 4| 5| 6| 7| 8| 9|      ten sectors a track, a skew of two
///   track 1   |18|19|10|11|12|13|14|15|16|17|
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotatingSpec {
    /// Cylinders.
    #[serde(default)]
    pub cylinders: u64,
    /// Tracks a cylinder, one a head.
    pub tracks_per_cylinder: u64,
    /// Sectors a track.
    pub sectors_per_track: u64,
    /// Bytes a sector.
    pub sector_bytes: u32,
    /// Nanoseconds of one revolution.
    pub revolution_ns: u64,
    /// A seek over d > 0 cylinders takes `seek_fixed_ms + seek_linear_ms * d + seek_root_ms * sqrt(d)` milliseconds.
    pub seek_fixed_ms: f64,
    /// See `seek_fixed_ms`.
    pub seek_linear_ms: f64,
    /// See `seek_fixed_ms`.
    pub seek_root_ms: f64,
    /// Nanoseconds until another head of the same cylinder reads.
    pub head_switch_ns: u64,
    /// Sectors by which a track begins later than the one before it in its cylinder.
    pub track_skew: u64,
    /// Sectors by which the first track of a cylinder begins later than the last one of the cylinder before it.
    pub cylinder_skew: u64,
}

const NS_PER_MS: f64 = 1e6;
/// The longest that anything may take in a model with numbers of one's own: a minute.
pub(crate) const MOST_NS: u64 = 60_000_000_000;

impl RotatingSpec {
    /// The paper's disk of 850 MB. The paper gives a skew between tracks and no time for a head switch. It gives none
    /// between cylinders: here that is the least that covers the seek of one cylinder (11.3 sectors), as a drive is made,
    /// so that reading on into the next cylinder costs no turn.
    pub fn paper() -> Self {
        Self {
            cylinders: 4350,
            tracks_per_cylinder: 2,
            sectors_per_track: 50,
            sector_bytes: 2048,
            revolution_ns: 13_330_000,
            seek_fixed_ms: 2.867,
            seek_linear_ms: 0.0029,
            seek_root_ms: 0.13,
            head_switch_ns: 0,
            track_skew: 6,
            cylinder_skew: 12,
        }
    }

    /// Today's disk of 7,200 revolutions a minute: 197 MB/s along a track, a mean seek of 7.6 ms. `size_bytes` is
    /// rounded up to whole cylinders.
    pub fn hdd_7200(size_bytes: u64) -> Self {
        Self {
            tracks_per_cylinder: 8,
            sectors_per_track: 400,
            sector_bytes: 4096,
            revolution_ns: 8_333_333,
            head_switch_ns: 800_000,
            track_skew: 40,
            cylinder_skew: 48,
            ..Self::paper()
        }
        .sized(size_bytes)
        .seeking(0.8, 6.0, 9.0)
    }

    /// A disk of 10,000 revolutions a minute: 137 MB/s along a track, a mean seek of 4.6 ms.
    pub fn hdd_10k(size_bytes: u64) -> Self {
        Self {
            sectors_per_track: 200,
            revolution_ns: 6_000_000,
            track_skew: 28,
            cylinder_skew: 34,
            ..Self::hdd_7200(0)
        }
        .sized(size_bytes)
        .seeking(0.6, 4.0, 5.0)
    }

    /// As many cylinders as `size_bytes` need, one at least.
    fn sized(self, size_bytes: u64) -> Self {
        Self { cylinders: 1, ..self }.holding(size_bytes)
    }

    /// The same disk, with more cylinders where `size_bytes` need them.
    pub(crate) fn holding(self, size_bytes: u64) -> Self {
        let cylinder_bytes = self.tracks_per_cylinder * self.track_bytes();
        Self { cylinders: self.cylinders.max(size_bytes.div_ceil(cylinder_bytes)).max(1), ..self }
    }

    /// What is wrong with these numbers, when no disk can have them.
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        let within = |number: u64, most: u64| (1..=most).contains(&number);
        let seeks = [self.seek_fixed_ms, self.seek_linear_ms, self.seek_root_ms];
        if !(512..=4096).contains(&self.sector_bytes) || !self.sector_bytes.is_power_of_two() {
            Some("sector_bytes must be 512, 1024, 2048 or 4096")
        } else if !within(self.tracks_per_cylinder, 1 << 10) || !within(self.sectors_per_track, 1 << 20) {
            Some("tracks_per_cylinder must be from 1 to 1024, and sectors_per_track from 1 to 1048576")
        } else if !within(self.revolution_ns, MOST_NS) || self.head_switch_ns > MOST_NS {
            Some("revolution_ns and head_switch_ns must be a minute at most, and a revolution takes time")
        } else if self.cylinders > 1 << 32 || self.track_skew.max(self.cylinder_skew) >= self.sectors_per_track {
            Some("a skew must be less than a track, and cylinders fewer than 4294967296")
        } else if seeks.iter().any(|ms| !(0.0..=60_000.0).contains(ms)) || self.seek_ns(self.cylinders) > MOST_NS {
            Some("a seek takes from 0 ms to a minute")
        } else if u128::from(self.cylinders * self.tracks_per_cylinder) * u128::from(self.track_bytes()) >= 1 << 63 {
            Some("it holds more than 8 EiB")
        } else {
            None
        }
    }

    /// Seeks that reach from one edge to the other in `fixed + linear + root` milliseconds, whatever the cylinders.
    fn seeking(self, fixed: f64, linear: f64, root: f64) -> Self {
        let cylinders = self.cylinders as f64;
        Self { seek_fixed_ms: fixed, seek_linear_ms: linear / cylinders, seek_root_ms: root / cylinders.sqrt(), ..self }
            .reading_on()
    }

    /// The same disk, with more cylinder skew where a seek of one cylinder takes longer than what it has: so who reads on into
    /// the next cylinder loses no turn. The fewer the cylinders that seeks are stretched over, the longer is that of one.
    pub fn reading_on(self) -> Self {
        let sectors = (self.seek_ns(1) * self.sectors_per_track).div_ceil(self.revolution_ns);
        // A seek longer than a turn: what counts is where the turn has come to.
        Self { cylinder_skew: self.cylinder_skew.max(sectors) % self.sectors_per_track, ..self }
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.cylinders * self.tracks_per_cylinder * self.track_bytes()
    }

    /// Bytes a track.
    pub fn track_bytes(&self) -> u64 {
        self.sectors_per_track * u64::from(self.sector_bytes)
    }

    /// Nanoseconds of a seek over so many cylinders; 0 over none.
    pub fn seek_ns(&self, cylinders: u64) -> u64 {
        if cylinders == 0 {
            return 0;
        }
        let distance = cylinders as f64;
        let seek_ms = self.seek_fixed_ms + self.seek_linear_ms * distance + self.seek_root_ms * distance.sqrt();
        (seek_ms * NS_PER_MS).round() as u64
    }

    /// Nanoseconds from the mark of the turn to the beginning of the sector in place `index` of the turn, which may be
    /// more than one turn.
    fn angle_ns(&self, index: u64) -> u64 {
        index * self.revolution_ns / self.sectors_per_track
    }

    /// Sectors by which the track's numbering begins after the mark of the turn.
    fn skew(&self, cylinder: u64, head: u64) -> u64 {
        let per_cylinder = (self.tracks_per_cylinder - 1) * self.track_skew + self.cylinder_skew;
        (cylinder * per_cylinder + head * self.track_skew) % self.sectors_per_track
    }
}

/// A disk that turns: where its heads are, and, as the time says, where its platters are.
#[derive(Clone, Copy, Debug)]
pub struct Rotating {
    spec: RotatingSpec,
    cylinder: u64,
    head: u64,
}

impl Rotating {
    /// A disk whose heads begin at the outer edge.
    pub fn new(spec: RotatingSpec) -> Self {
        Self { spec, cylinder: 0, head: 0 }
    }

    /// Moves to a track; nanoseconds it takes.
    fn move_to(&mut self, cylinder: u64, head: u64) -> u64 {
        let moved_ns = match self.cylinder.abs_diff(cylinder) {
            0 if self.head != head => self.spec.head_switch_ns,
            distance => self.spec.seek_ns(distance),
        };
        (self.cylinder, self.head) = (cylinder, head);
        moved_ns
    }

    /// When sectors `from..to`, numbered over the disk, have passed under the heads, beginning at `now_ns`.
    fn pass(&mut self, mut from: u64, to: u64, mut now_ns: u64) -> u64 {
        let spec = self.spec;
        while from < to {
            let (track, within) = (from / spec.sectors_per_track, from % spec.sectors_per_track);
            let (cylinder, head) = (track / spec.tracks_per_cylinder, track % spec.tracks_per_cylinder);
            let sectors = (to - from).min(spec.sectors_per_track - within);
            now_ns = now_ns.saturating_add(self.move_to(cylinder, head));
            let first = within + spec.skew(cylinder, head);
            let (begin_ns, end_ns) = (spec.angle_ns(first), spec.angle_ns(first + sectors));
            // The turn has come to `now_ns % revolution_ns`: wait for the beginning to come round.
            let turned_ns = now_ns % spec.revolution_ns;
            let wait_ns = (begin_ns % spec.revolution_ns + spec.revolution_ns - turned_ns) % spec.revolution_ns;
            now_ns = now_ns.saturating_add(wait_ns + (end_ns - begin_ns));
            from += sectors;
        }
        now_ns
    }
}

impl ServiceModel for Rotating {
    fn service_ns(&mut self, io: &Io, start_ns: u64) -> u64 {
        match io.kind {
            IoKind::Read | IoKind::Write | IoKind::WriteZeroes => {
                let sector_bytes = u64::from(self.spec.sector_bytes);
                let from = io.offset_bytes / sector_bytes;
                let to = (io.offset_bytes + io.len_bytes).div_ceil(sector_bytes);
                self.pass(from, to, start_ns) - start_ns
            }
            // Writes have paid for their way to the platters already.
            IoKind::Flush | IoKind::Discard => 0,
        }
    }
}
