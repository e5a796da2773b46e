//! The numbers of the hot area: the paper's, and today's.

/// How the hot area is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotSettings {
    /// The hot area's share of the data disks, in thousandths: so much it has in any case.
    pub share_permille: u16,
    /// The most a controller's hot area holds, in bytes, one copy counted: its table lies in memory, whatever the disks have.
    pub limit_bytes: u64,
    /// Slots in a track: what one movement of a disk's head reaches.
    pub track_slots: u16,
    /// Blocks that are written together; a track with as many free slots is *writable*.
    pub batch: u16,
    /// Tracks of the pair whose blocks age by one at each write.
    pub aged_tracks: u16,
    /// From which Age on a block is cold.
    pub cold_age: u8,
    /// Writable tracks of a pair with which it needs no migration.
    pub enough_tracks: u32,
    /// Writes whole stripes straight to their cold places.
    pub eager: bool,
    /// Migrates blocks whose cold places share a stripe together, wherever in the hot area they lie.
    pub by_stripe: bool,
    /// Takes more than its share while the pool has room, instead of moving cold blocks, and returns it when the room is wanted.
    pub borrows: bool,
}

impl HotSettings {
    /// Writable tracks with which a pair of so many tracks needs no migration: a quarter of them at most.
    pub fn enough(&self, tracks: u32) -> u32 {
        self.enough_tracks.min(tracks / 4).max(1)
    }

    /// Today's disks: batches of 64 KiB.
    pub const TODAY: Self = Self {
        share_permille: 100,
        limit_bytes: 4 << 30,
        track_slots: 16,
        batch: 16,
        aged_tracks: 4,
        cold_age: 2,
        enough_tracks: 80,
        eager: true,
        by_stripe: true,
        borrows: true,
    };

    /// The paper's: tracks of 50 sectors of 2 KB, which are 25 blocks, and 7 blocks a write.
    pub const MOGI1996: Self = Self {
        limit_bytes: u64::MAX,
        track_slots: 25,
        batch: 7,
        eager: false,
        by_stripe: false,
        borrows: false,
        ..Self::TODAY
    };
}
