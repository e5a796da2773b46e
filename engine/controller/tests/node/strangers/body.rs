//! What the fuzz target and the test do with their bytes.

use crate::rig;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Block, Buf, Runtime, Writer};
use kura_controller::{Check, Config, Layout, Node, Opener, PoolSpec, SharedPool, VolumeSpec, survey};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, Sim, SimDisk};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const DISKS: [(&str, u64); 4] = [("fast0", 12), ("fast1", 12), ("slow0", 8), ("slow1", 8)];
/// Of these, those with journals.
const CARRIERS: usize = 2;
/// Where a journal's roots lie on a disk that carries it, and its ring: behind two areas for tables of 1 MiB.
const ROOTS: u64 = 1 << 20;
const RING: u64 = ROOTS + 2 * BLOCK_BYTES_U64 + (2 << 20);
/// Blocks of the ring that have something.
const ENTRIES: u64 = 4;
/// Most fields of labels, roots and entries lie below.
const FIELDS: usize = 220;

/// A pool is made, used, and changed as `data` says, each change with a checksum that agrees. True where it is served after
/// that.
pub fn start(data: &[u8]) -> bool {
    let sim = Sim::new(1);
    sim.set_limit(Duration::from_hours(1));
    let disks: Vec<_> = DISKS.iter().map(|(name, mib)| sim.disk(name, DiskSpec::nvme(mib << 20))).collect();
    let pool =
        PoolSpec { uuid: [9; 16], extent_bytes: 64 << 10, controllers: 1, journal_bytes: 5 << 20, floating_percent: 0 };
    rig::format(&sim, &disks, CARRIERS, &pool);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(use_it(&disks, &runtime));
    // The log has what was written last.
    sim.crash();
    sim.block_on(async {
        for change in data.chunks_exact(5) {
            make(&disks, [change[0], change[1], change[2], change[3], change[4]]).await;
        }
    });
    let runtime: Rc<dyn Runtime> = sim.runtime();
    let served = sim.block_on(async {
        let opener = SimDisk::opener(&disks);
        if let Err(refused) = survey(&paths(), &(Box::new(opener) as Opener)).await {
            assert!(!refused.to_string().contains('\n'), "{refused}");
        }
        match node(&disks, &runtime).await {
            Ok(node) => {
                // What does not hold is told.
                let _ = node.check(Check::Verify).await;
                true
            }
            Err(refused) => {
                assert!(!refused.to_string().contains('\n'), "{refused}");
                false
            }
        }
    });
    sim.crash();
    served
}

fn paths() -> Vec<String> {
    DISKS.map(|(name, _)| name.to_owned()).into()
}

async fn node(disks: &[SimDisk], runtime: &Rc<dyn Runtime>) -> kura_block::Result<Node> {
    let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
    Ok(Node::start(&paths(), SimDisk::opener(disks), runtime, &shared, Config::default()).await?.0)
}

async fn use_it(disks: &[SimDisk], runtime: &Rc<dyn Runtime>) {
    let node = node(disks, runtime).await.unwrap();
    let (name, size_bytes) = ("v".to_owned(), 1 << 20);
    let spec = VolumeSpec { name, size_bytes, layout: Layout::Mirror, thick: false, read_only: false };
    node.create_volume(spec).await.unwrap();
    let (door, _) = node.find("v").await.unwrap();
    let write = door.call(|controller| {
        Box::pin(async move {
            let volume = controller.open_volume("v").unwrap();
            volume.write(0, Buf::copy_of(&[7; 3 * BLOCK_BYTES]).into(), true).await.unwrap();
            controller.store().checkpoint().await.unwrap();
            volume.write(1 << 19, Buf::copy_of(&[8; BLOCK_BYTES]).into(), true).await.unwrap();
        })
    });
    write.await.unwrap();
}

/// Changes a field: of what, on which disks, where, how, and to what.
async fn make(disks: &[SimDisk], [what, which, at, how, to]: [u8; 5]) {
    let (blocks, crc_at): (Vec<u64>, usize) = match what % 4 {
        0 | 1 => (vec![0, BLOCK_BYTES_U64], 8),
        2 => (vec![ROOTS, ROOTS + BLOCK_BYTES_U64], 4),
        _ => (vec![RING + u64::from(to) % ENTRIES * BLOCK_BYTES_U64], 4),
    };
    let all = if what % 4 < 2 { disks } else { &disks[..CARRIERS] };
    let chosen = if which < 128 { all } else { std::slice::from_ref(&all[usize::from(which) % all.len()]) };
    for disk in chosen {
        let device = disk.open();
        for place in &blocks {
            let mut block = device.read(*place, BLOCK_BYTES).await.unwrap().contiguous().to_vec();
            change(&mut block, usize::from(at) % FIELDS, how, to);
            let mut sealed = Writer::new();
            sealed.bytes(&block);
            sealed.seal(crc_at);
            device.write(*place, Buf::copy_of(sealed.as_slice()).into(), true).await.unwrap();
        }
    }
}

fn change(block: &mut [u8], at: usize, how: u8, to: u8) {
    let extremes = [0, 1, 4095, u64::from(u32::MAX), 1 << 40, 1 << 62, i64::MAX as u64, u64::MAX];
    let extreme = extremes[usize::from(to) % extremes.len()].to_le_bytes();
    match how % 4 {
        0 => block[at] = to,
        1 => block[at] ^= 1 << (to % 8),
        // Fields are aligned to what they are long.
        2 => block[at / 4 * 4..][..4].copy_from_slice(&extreme[..4]),
        _ => block[at / 8 * 8..][..8].copy_from_slice(&extreme),
    }
}
