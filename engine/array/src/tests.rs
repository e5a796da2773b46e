//! The array alone, on simulated disks.

use crate::{
    Array, BadCopy, Berth, Class, JournalPart, Label, LabelMember, Layout, Member, Page, PageOwner, Place, Places,
    Plan, Rows, Shape, Shelf, Site, Urgency, read_label, write_label,
};
use futures::future::select;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Block, Buf, Bufs, Checksum, DeviceId, ExtentId, Kind, Runtime};
use kura_sim::{DiskSpec, FaultKind, Place as Where, Sim, SimDisk};
use proptest::prelude::*;
use std::time::Duration;

const EXTENT: u64 = 64 << 10;
const OWNER: PageOwner = PageOwner { volume: 7, index: 2, born: 11 };

struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
    array: Array,
    places: Places,
}

impl Rig {
    fn site(&self) -> Site {
        Site::fixed(Shape::MIRROR, self.places.clone())
    }
}

/// Two disks, and an extent mirrored on them.
fn rig() -> Rig {
    let sim = Sim::new(1);
    let disks: Vec<_> = (0..2).map(|at| sim.disk(&format!("disk{at}"), DiskSpec::nvme(8 << 20))).collect();
    let plan = Plan::of(8 << 20, EXTENT, 0, 0).unwrap();
    let members = disks.iter().enumerate();
    let members = members.map(|(id, disk)| Member::new(DeviceId(id as u16), Class::Slow, plan, Some(disk.open())));
    let array = Array::new(members.collect(), EXTENT, sim.runtime());
    let places =
        (0..2).map(|device| Place { device: DeviceId(device), extent: ExtentId(3 + u32::from(device)) }).collect();
    Rig { sim, disks, array, places }
}

fn blocks(count: usize) -> (Bufs, Vec<Checksum>) {
    let bytes: Vec<u8> = (0..count * BLOCK_BYTES).map(|at| (at / 97) as u8).collect();
    let checksums = bytes.chunks(BLOCK_BYTES).map(Checksum::of).collect();
    (Bufs::from(Buf::copy_of(&bytes)), checksums)
}

#[test]
fn a_rotten_copy_is_passed_over_and_named() {
    let rig = rig();
    let (data, checksums) = blocks(4);
    rig.sim.block_on(async {
        assert!(rig.array.write(&rig.places, 1, &data, Urgency::Buffer).await.is_empty());
        assert!(rig.array.flush().await.is_empty());
        let plan = rig.array.members()[0].plan;
        let at = plan.extent_at(ExtentId(3)) + 2 * BLOCK_BYTES_U64;
        rig.disks[0].inject(FaultKind::BitRot(Where::Range(at..at + 4096), 3));
        let read = rig.array.read(&rig.places, 1, &checksums, Urgency::Client).await.unwrap();
        assert_eq!(*read.data.contiguous(), *data.contiguous());
        assert_eq!(read.damaged, [1]);
        assert_eq!(rig.array.members()[0].counters().checksum_errors, 1);
        let found = rig.array.verify(&rig.places, 1, &checksums).await;
        let rotten = BadCopy { block: 1, disk: DeviceId(0), is_rotten: true };
        assert_eq!((found.bad, found.lost), (vec![rotten], vec![false; 4]));
        assert_eq!(rig.array.members()[0].counters().checksum_errors, 1, "it may have been written meanwhile");
        rig.array.confirm(&rotten);
        assert_eq!(rig.array.members()[0].counters().checksum_errors, 2);
    });
}

/// A disk that refuses a block, and one whose rot of another is mended from it: each block counts by itself.
#[test]
fn a_refused_block_says_nothing_of_its_neighbours() {
    let rig = rig();
    let (data, checksums) = blocks(8);
    rig.sim.block_on(async {
        rig.array.write(&rig.places, 1, &data, Urgency::Buffer).await;
        rig.array.flush().await;
        let at = |disk: usize, block: u64| {
            let at = rig.array.members()[disk].plan.extent_at(rig.places[disk].extent) + block * BLOCK_BYTES_U64;
            Where::Range(at..at + 4096)
        };
        rig.disks[0].inject(FaultKind::ReadError(at(0, 3)));
        rig.disks[1].inject(FaultKind::BitRot(at(1, 6), 3));
        let found = rig.array.verify(&rig.places, 1, &checksums).await;
        let refused = BadCopy { block: 2, disk: DeviceId(0), is_rotten: false };
        let rotten = BadCopy { block: 5, disk: DeviceId(1), is_rotten: true };
        assert_eq!((&found.bad, found.lost), (&vec![refused, rotten], vec![false; 8]));
        for bad in &found.bad {
            rig.array.confirm(bad);
        }
        let counters: Vec<_> = rig.array.members().iter().map(|member| member.counters()).collect();
        assert_eq!([counters[0].io_errors, counters[1].io_errors], [2, 0]);
        assert_eq!([counters[0].checksum_errors, counters[1].checksum_errors], [0, 1]);
        let read = rig.array.read(&rig.places, 1, &checksums, Urgency::Client).await.unwrap();
        assert_eq!(*read.data.contiguous(), *data.contiguous());
        assert_eq!(read.damaged, [2]);
        let lone = rig.array.verify(&rig.places[..1], 1, &checksums).await;
        assert_eq!(lone.lost.iter().filter(|lost| **lost).count(), 1);
        // Of a disk that reads nothing, one block is enough to tell whether it writes.
        rig.disks[0].inject(FaultKind::ReadsFail { lasts: Duration::MAX });
        let read = rig.array.read(&rig.places, 1, &checksums[..4], Urgency::Client).await.unwrap();
        assert_eq!(*read.data.contiguous(), *data.slice(0..4 * BLOCK_BYTES).contiguous());
        assert_eq!(read.damaged, [0]);
    });
}

/// A disk that refuses many blocks is not asked for each of them before the other one is; where both have some that the other one lacks,
/// all are found.
#[test]
fn a_good_copy_is_read_before_a_bad_one_has_refused_every_block() {
    let rig = rig();
    let (data, checksums) = blocks(16);
    rig.sim.block_on(async {
        rig.array.write(&rig.places, 0, &data, Urgency::Buffer).await;
        rig.array.flush().await;
        let refuse = |disk: usize, first: u64, end: u64| {
            let at = rig.array.members()[disk].plan.extent_at(rig.places[disk].extent);
            let bytes = BLOCK_BYTES as u64;
            rig.disks[disk].inject(FaultKind::ReadError(Where::Range(at + first * bytes..at + end * bytes)));
        };
        let errors = || rig.array.members().iter().map(|member| member.counters().io_errors).sum::<u64>();
        refuse(0, 1, 15);
        let read = rig.array.read(&rig.places, 0, &checksums, Urgency::Client).await.unwrap();
        assert_eq!(*read.data.contiguous(), *data.contiguous());
        assert!(errors() <= 3, "{} refusals", errors());
        assert!(read.damaged.iter().all(|block| (1..15).contains(block)), "{:?}", read.damaged);
        rig.array.write(&rig.places, 0, &data, Urgency::Buffer).await;
        refuse(0, 1, 6);
        refuse(1, 8, 14);
        let read = rig.array.read(&rig.places, 0, &checksums, Urgency::Client).await.unwrap();
        assert_eq!(*read.data.contiguous(), *data.contiguous());
    });
}

#[test]
fn without_a_good_copy_a_read_is_an_error() {
    let rig = rig();
    let (data, checksums) = blocks(1);
    rig.sim.block_on(async {
        rig.array.write(&rig.places, 0, &data, Urgency::Buffer).await;
        rig.array.flush().await;
        for (disk, place) in rig.disks.iter().zip(&rig.places) {
            let at = rig.array.members()[0].plan.extent_at(place.extent);
            disk.inject(FaultKind::BitRot(Where::Range(at..at + 4096), 1));
        }
        let read = rig.array.read(&rig.places, 0, &checksums, Urgency::Client).await;
        assert_eq!(read.unwrap_err().kind(), Kind::Corrupt);
        rig.array.fail(DeviceId(0));
        rig.array.fail(DeviceId(1));
        let read = rig.array.read(&rig.places, 0, &checksums, Urgency::Client).await;
        assert_eq!(read.unwrap_err().kind(), Kind::Device);
    });
}

#[test]
fn a_dead_disk_is_named_and_the_other_copy_serves() {
    let rig = rig();
    let (data, checksums) = blocks(3);
    rig.sim.block_on(async {
        rig.disks[1].inject(FaultKind::Dead);
        let failures = rig.array.write(&rig.places, 0, &data, Urgency::Buffer).await;
        assert_eq!(failures.iter().map(|failure| failure.device).collect::<Vec<_>>(), [DeviceId(1)]);
        assert!(rig.array.fail(DeviceId(1)) && !rig.array.fail(DeviceId(1)));
        let read = rig.array.read(&rig.places, 0, &checksums, Urgency::Client).await.unwrap();
        assert_eq!(*read.data.contiguous(), *data.contiguous());
        assert!(
            rig.array.write(&rig.places, 0, &data, Urgency::Buffer).await.is_empty(),
            "a disk out of service is not asked"
        );
    });
}

#[test]
fn of_two_pages_the_newer_good_one_counts() {
    let rig = rig();
    rig.sim.block_on(async {
        assert_eq!(rig.array.read_page(&rig.site(), 0, OWNER).await.newest, None);
        let mut page = Page::empty(16);
        for sequence in 1..=3 {
            page.sequence = sequence;
            page.set(sequence as usize, Some(Checksum::of(b"x")));
            rig.array.write_page(&rig.site(), 0, OWNER, &page).await;
            rig.array.flush().await;
            assert_eq!(rig.array.read_page(&rig.site(), 0, OWNER).await.newest, Some(page.clone()));
        }
        let earlier = PageOwner { born: 10, ..OWNER };
        assert_eq!(rig.array.read_page(&rig.site(), 0, earlier).await.newest, None);
        // The newest page rots on both disks: the one before it is still there.
        for (disk, place) in rig.disks.iter().zip(&rig.places) {
            let at = rig.array.members()[0].plan.page_at(place.extent, Shelf::Own, 3);
            disk.inject(FaultKind::BitRot(Where::Range(at..at + 4096), 1));
        }
        assert_eq!(rig.array.read_page(&rig.site(), 0, OWNER).await.newest.unwrap().sequence, 2);
    });
}

/// A move that came to nothing may have left a page that is newer than the one that a later one brings.
#[test]
fn a_page_that_moves_counts_whatever_lies_there() {
    let rig = rig();
    rig.sim.block_on(async {
        let mut page = Page::empty(16);
        for sequence in [9, 4] {
            page.sequence = sequence;
            page.set(sequence as usize, Some(Checksum::of(b"x")));
            for to in 0..2 {
                rig.array.move_pages(&rig.site(), to, &[(0, OWNER, page.clone().into())]).await;
            }
            rig.array.flush().await;
            let sought = rig.array.read_page(&rig.site(), 0, OWNER).await;
            assert!(!sought.uneven && sought.newest.as_ref() == Some(&page), "{sought:?}");
        }
        page.sequence = 5;
        rig.array.write_page(&rig.site(), 0, OWNER, &page).await;
        assert_eq!(rig.array.read_page(&rig.site(), 0, OWNER).await.newest, Some(page));
    });
}

/// What one disk reads well, another one may refuse; and where there never was a page, a refusal is told, and hides none.
#[test]
fn a_page_that_one_disk_reads_another_may_refuse() {
    let rig = rig();
    rig.sim.block_on(async {
        let slot = |disk: usize, turn: u64| {
            let at = rig.array.members()[disk].plan.page_at(rig.places[disk].extent, Shelf::Own, turn);
            Where::Range(at..at + 4096)
        };
        rig.disks[1].inject(FaultKind::ReadError(slot(1, 1)));
        let sought = rig.array.read_page(&rig.site(), 0, OWNER).await;
        assert!(sought.is_blank() && sought.refused.len() == 1, "{sought:?}");
        let mut page = Page::empty(16);
        for sequence in 1..=3 {
            page.sequence = sequence;
            rig.array.write_page(&rig.site(), 0, OWNER, &page).await;
            rig.array.flush().await;
        }
        rig.disks[1].inject(FaultKind::ReadError(slot(1, 3)));
        let sought = rig.array.read_page(&rig.site(), 0, OWNER).await;
        assert!(sought.refused.is_empty() && sought.newest.unwrap().sequence == 3, "the other disk has it");
        // A turn that reads as nothing on the other disk may never have been written there: one that refuses it keeps nobody waiting.
        rig.disks[1].inject(FaultKind::ReadError(slot(1, 2)));
        let sought = rig.array.read_page(&rig.site(), 0, OWNER).await;
        assert!(sought.refused.is_empty() && sought.told, "{sought:?}");
    });
}

#[test]
fn labels_come_back_and_the_newer_good_one_counts() {
    let sim = Sim::new(1);
    let disk = sim.disk("disk", DiskSpec::nvme(8 << 20));
    let member = |id| LabelMember {
        uuid: [id; 16],
        class: Class::Slow,
        journal: (id == 0).then_some(1),
        gone: id == 1,
        extents: 5,
    };
    let mut label = Label {
        pool: [1; 16],
        generation: 1,
        id: DeviceId(1),
        controllers: 2,
        plan: Plan::of(8 << 20, EXTENT, 0, 0).unwrap(),
        journal: JournalPart { tables_bytes: 4096, ring_bytes: 8192 },
        members: vec![member(0), member(1)],
    };
    sim.block_on(async {
        let device = disk.open();
        assert_eq!(read_label(&*device).await.unwrap(), None);
        write_label(&*device, &label).await.unwrap();
        assert_eq!(read_label(&*device).await.unwrap(), Some(label.clone()));
        label.generation = 2;
        label.members.push(member(2));
        write_label(&*device, &label).await.unwrap();
        assert_eq!(read_label(&*device).await.unwrap(), Some(label.clone()));
        device.write(0, Buf::copy_of(&[9; 4096]).into(), true).await.unwrap();
        assert_eq!(read_label(&*device).await.unwrap().map(|label| label.generation), Some(1));
        // What a later kura says of a member: the byte that is zero, in the newest copy, with the checksum of it.
        label.generation = 4;
        write_label(&*device, &label).await.unwrap();
        for slot in [0, 4096] {
            let mut bytes = device.read(slot, 4096).await.unwrap().contiguous().to_vec();
            bytes[96 + 16 + 3] = 2;
            bytes[8..12].fill(0);
            let crc = crc32c::crc32c(&bytes);
            bytes[8..12].copy_from_slice(&crc.to_le_bytes());
            device.write(slot, Buf::copy_of(&bytes).into(), true).await.unwrap();
        }
        let refused = read_label(&*device).await.unwrap_err();
        assert!(refused.to_string().contains("use the kura that wrote it"), "{refused}");
    });
}

proptest! {
    /// Whatever the sizes, the parts of a disk follow each other and end on it.
    #[test]
    fn the_parts_of_a_disk_do_not_overlap(
        size in 0u64..1 << 44,
        power in 16u32..=26,
        journals in 0u64..1 << 32,
        percent in 0u8..=100,
    ) {
        let spare = Plan::spare_of(1 << power, percent);
        prop_assert!((spare == 0) == (percent == 0));
        let plan = Plan::of(size, 1 << power, journals, spare).unwrap();
        if plan.extents > 0 {
            let last = ExtentId(plan.extents - 1);
            prop_assert!(plan.pages_at >= (1 << 20) + journals);
            let pages_end = plan.page_at(last, Shelf::Neighbour, 1) + plan.page_bytes();
            prop_assert!(pages_end <= plan.extents_at);
            if spare > 0 {
                prop_assert_eq!(plan.map_at(ExtentId(0), 0, 0), pages_end);
                let map_bytes = plan.map_at(last, 1, 0) - plan.map_at(last, 0, 0);
                prop_assert_eq!(plan.map_at(last, 1, 0) + map_bytes, plan.map_at(ExtentId(0), 0, 1));
                prop_assert!(plan.map_at(last, 1, 1) + map_bytes <= plan.extents_at);
            }
            prop_assert!(plan.extent_at(last) + plan.positions() as u64 * 4096 <= size);
        }
    }
}

/// A group that comes back to a place where it was before does not take the maps of that time for its own, however many they were.
#[test]
fn a_map_of_an_earlier_time_at_a_place_says_nothing() {
    let sim = Sim::new(1);
    let disks: Vec<_> = (0..3).map(|at| sim.disk(&format!("disk{at}"), DiskSpec::nvme(8 << 20))).collect();
    let plan = Plan::of(8 << 20, EXTENT, 0, 4).unwrap();
    let array = || {
        let members =
            disks.iter().zip(0..).map(|(disk, id)| Member::new(DeviceId(id), Class::Slow, plan, Some(disk.open())));
        Array::new(members.collect(), EXTENT, sim.runtime())
    };
    let shape = Layout::Floating.shape(3, Some(3), 4).unwrap();
    let places: Places = (0..3).map(|device| Place { device: DeviceId(device), extent: ExtentId(2) }).collect();
    let site = || Site { shape, places: places.clone(), afloat: Rows::of(shape, &places, (7, 11)) };
    let write_maps = async |array: &Array| {
        let maps = array.leaving_maps(None);
        assert!(array.write_maps(&maps).await.is_empty() && array.flush().await.is_empty());
        maps.written();
    };
    sim.block_on(async {
        let old = array();
        let before = old.take_berth(&site(), 0, places[0], 20);
        for turn in 0..5 {
            old.read_place(&before, turn, 1, Urgency::Client).await.unwrap();
            assert!(old.write_afloat(&before, turn, Bufs::zeroes(BLOCK_BYTES), Urgency::Buffer).await.is_none());
            write_maps(&old).await;
        }
        assert!((0..5).any(|row| before.position(row) != old.take_berth(&site(), 0, places[0], 20).position(row)));
        drop(before);
        let (data, _) = blocks(16);
        let again = old.take_berth(&site(), 0, places[0], 30);
        assert!(old.write_place(&again, 0, data.clone(), Urgency::Buffer).await.is_none());
        write_maps(&old).await;
        let read = array().read_place(&site().berth(0), 0, 16, Urgency::Client).await.unwrap();
        assert!(*read.contiguous() == *data.contiguous());
    });
}

/// A crash leaves the newest map in one of its copies only. It is in both before anything goes by it, though who looks for it leaves at once:
/// the other turn is written over next, and a copy may rot.
#[test]
fn a_map_that_counts_is_in_both_copies_before_the_next_one() {
    let sim = Sim::new(1);
    let disk = sim.disk("disk", DiskSpec::nvme(8 << 20));
    let plan = Plan::of(8 << 20, EXTENT, 0, 4).unwrap();
    let array =
        || Array::new(vec![Member::new(DeviceId(0), Class::Slow, plan, Some(disk.open()))], EXTENT, sim.runtime());
    let shape = Layout::Floating.shape(3, Some(3), 4).unwrap();
    let places: Places = (0..3).map(|_| Place { device: DeviceId(0), extent: ExtentId(2) }).collect();
    let site = || Site { shape, places: places.clone(), afloat: Rows::of(shape, &places, (7, 11)) };
    let at = |turn, copy| plan.map_at(ExtentId(2), turn, copy);
    let map = |turn, copy| disk.at_rest(at(turn, copy), BLOCK_BYTES);
    let block = |byte: u8| Buf::copy_of(&[byte; BLOCK_BYTES]);
    let write = async |array: &Array, berth: &Berth, byte: u8| {
        // So that the head is near.
        array.read_place(berth, 1, 1, Urgency::Client).await.unwrap();
        let lies = berth.position(0);
        assert!(array.write_afloat(berth, 0, block(byte).into(), Urgency::Buffer).await.is_none());
        assert_ne!(berth.position(0), lies, "it floats");
        let maps = array.leaving_maps(None);
        assert!(array.write_maps(&maps).await.is_empty() && array.flush().await.is_empty());
        maps.written();
    };
    sim.block_on(async {
        let old = array();
        let berth = old.take_berth(&site(), 0, places[0], 20);
        for byte in 1..5 {
            write(&old, &berth, byte).await;
        }
        // The fifth one is in turn 1, where the third one was: the power goes when the first copy is written.
        let before = map(1, 1);
        write(&old, &berth, 5).await;
        let newest = map(1, 0);
        assert!(newest == map(1, 1) && newest != before);
        let raw = disk.open();
        raw.write(at(1, 1), Buf::copy_of(&before).into(), true).await.unwrap();

        let found = array();
        let berth = site().berth(0);
        drop(select(Box::pin(found.read_place(&berth, 0, 1, Urgency::Client)), std::future::ready(())).await);
        sim.runtime().sleep(Duration::from_secs(1)).await;
        assert!(map(1, 0) == newest && map(1, 1) == newest, "it is in both copies");
        // The next one gets as far as its first block, and then the first copy rots.
        raw.write(at(0, 0), block(9).into(), true).await.unwrap();
        raw.write(at(0, 1), block(9).into(), true).await.unwrap();
        raw.write(at(1, 0), block(9).into(), true).await.unwrap();
        let read = array().read_place(&site().berth(0), 0, 1, Urgency::Client).await.unwrap();
        assert!(*read.contiguous() == *block(5), "row 0 lies where it was written last");
    });
}
