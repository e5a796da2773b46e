use super::*;
use kura_block::Buf;
use proptest::prelude::*;

/// A device that does everything at once, and its ledger.
struct Device {
    bytes: Vec<u8>,
    ledger: Ledger,
}

impl Device {
    fn new() -> Self {
        Self { bytes: vec![0; 64 << 10], ledger: Ledger::default() }
    }

    fn write(&mut self, range: Range<u64>) {
        let (change, bytes) = self.ledger.write(range.clone());
        self.store(range, &bytes);
        self.ledger.changed(change, true);
    }

    fn store(&mut self, range: Range<u64>, bytes: &Bufs) {
        bytes.copy_to(&mut self.bytes[range.start as usize..range.end as usize]);
    }

    /// Mismatches found by a read of `range` now.
    fn read(&mut self, range: Range<u64>) -> u64 {
        let look = self.ledger.read(range.clone());
        self.answer(look, range)
    }

    fn answer(&mut self, look: Look, range: Range<u64>) -> u64 {
        let before = self.ledger.found.mismatches;
        let bytes = Buf::copy_of(&self.bytes[range.start as usize..range.end as usize]);
        self.ledger.check(look, &bytes.into());
        self.ledger.found.mismatches - before
    }
}

fn ranges() -> impl Strategy<Value = Vec<(u64, u64, bool)>> {
    prop::collection::vec((0_u64..60 << 10, 1_u64..4 << 10, any::<bool>()), 1..40)
}

proptest! {
    #[test]
    fn what_was_written_is_right_and_one_byte_off_is_wrong(ranges in ranges(), victim in any::<prop::sample::Index>()) {
        let mut device = Device::new();
        for (start, len, write) in ranges {
            if write {
                device.write(start..start + len);
            } else {
                prop_assert_eq!(device.read(start..start + len), 0);
            }
        }
        let size = device.bytes.len();
        prop_assert_eq!(device.read(0..size as u64), 0);
        let at = victim.index(size);
        device.bytes[at] ^= 0x10;
        prop_assert_eq!(device.read(0..size as u64), 1);
        let written: u64 = device.ledger.ranges(8192).iter().map(|range| range.end - range.start).sum();
        let found = device.ledger.ranges(8192).iter().any(|range| range.contains(&(at as u64)));
        prop_assert_eq!(found, device.ledger.segments.iter().any(|(start, segment)| (*start..segment.end).contains(&(at as u64))));
        prop_assert!(written <= size as u64);
    }
}

#[test]
fn a_block_at_another_place_or_of_another_time_is_wrong() {
    let mut device = Device::new();
    device.write(0..8192);
    let old = device.bytes[..4096].to_vec();
    device.bytes.copy_within(0..4096, 4096);
    assert_eq!(device.read(0..8192), 1, "the first block is not the second one");
    device.write(0..8192);
    assert_eq!(device.read(0..8192), 0);
    device.bytes[..4096].copy_from_slice(&old);
    assert_eq!(device.read(0..8192), 1, "a lost write leaves the old block");
}

#[test]
fn requests_under_way_together_have_no_order() {
    let mut device = Device::new();
    device.write(0..4096);
    let (one, first) = device.ledger.write(0..4096);
    let (other, second) = device.ledger.write(2048..6144);
    assert_eq!(device.read(0..8192), 0, "neither is done");
    device.store(2048..6144, &second);
    assert_eq!(device.read(0..8192), 0, "one is done, unanswered");
    device.store(0..4096, &first);
    device.ledger.changed(one, true);
    device.ledger.changed(other, true);
    assert_eq!(device.read(0..8192), 0, "the one after the other");
    device.store(2048..6144, &second);
    assert_eq!(device.read(0..8192), 0, "the other after the one");
    device.write(0..8192);
    device.store(2048..6144, &second);
    assert_eq!(device.read(0..8192), 2, "both were answered before the last write");
}

#[test]
fn a_read_may_find_what_was_written_and_replaced_while_it_was_under_way() {
    let mut device = Device::new();
    device.write(0..4096);
    let look = device.ledger.read(0..4096);
    device.write(0..4096);
    let between = device.bytes.clone();
    device.write(0..4096);
    device.bytes = between.clone();
    assert_eq!(device.answer(look, 0..4096), 0);
    assert_eq!(device.read(0..4096), 1, "a read that begins now may not");
}

#[test]
fn a_discard_leaves_zeroes_or_what_was_there() {
    let mut device = Device::new();
    device.write(0..12288);
    let old = device.bytes.clone();
    let change = device.ledger.discard(100..8192);
    device.bytes[4096..8192].fill(0);
    device.ledger.changed(change, true);
    assert_eq!(device.read(0..12288), 0);
    device.bytes.clone_from(&old);
    assert_eq!(device.read(0..12288), 0);
    device.bytes[..4096].fill(0);
    assert_eq!(device.read(0..12288), 1, "a block discarded in part stays");
    device.write(0..8192);
    device.bytes[4096..8192].fill(0);
    assert_eq!(device.read(0..12288), 1, "a write after the discard counts");
}

#[test]
fn a_failed_write_may_have_happened() {
    let mut device = Device::new();
    device.write(0..4096);
    let (change, bytes) = device.ledger.write(0..4096);
    device.ledger.changed(change, false);
    assert_eq!(device.read(0..4096), 0);
    device.store(0..4096, &bytes);
    assert_eq!(device.read(0..4096), 0);
    device.write(0..4096);
    device.store(0..4096, &bytes);
    assert_eq!(device.read(0..4096), 1);
}

#[test]
fn a_read_may_find_the_zeroes_of_a_discard_that_came_and_went_meanwhile() {
    for (discarded, mismatches) in [(true, 0), (false, 2)] {
        let mut device = Device::new();
        let range = 0..2 * BLOCK_BYTES as u64;
        device.write(range.clone());
        let look = device.ledger.read(range.clone());
        if discarded {
            let discard = device.ledger.discard(range.clone());
            device.ledger.changed(discard, true);
        }
        device.write(range.clone());
        device.bytes.fill(0);
        assert_eq!(device.answer(look, range), mismatches, "discarded: {discarded}");
    }
}
