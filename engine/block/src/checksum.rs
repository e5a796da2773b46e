//! The checksum of a block.

/// CRC-32C of one block's bytes, never zero: zero is kept for "nothing is written here", so that a table of
/// checksums is at once the map of what is written. A block whose CRC is zero carries `!0` instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checksum(std::num::NonZeroU32);

impl Checksum {
    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let crc = crc32c::crc32c(bytes);
        Self(std::num::NonZeroU32::new(crc).unwrap_or(std::num::NonZeroU32::MAX))
    }

    /// The checksum as stored, or `None` where zero says that nothing is written.
    pub fn from_stored(stored: u32) -> Option<Self> {
        std::num::NonZeroU32::new(stored).map(Self)
    }

    /// The value to store; never zero.
    pub fn stored(self) -> u32 {
        self.0.get()
    }
}
