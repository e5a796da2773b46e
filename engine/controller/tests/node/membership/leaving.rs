//! Disks that leave.
//!
//! What must hold: no space is promised to two of them.

use super::{CONTROLLERS, Rig};
use kura_block::{DeviceId, Kind};
use kura_controller::{DiskState, Layout, PoolSpec, VolumeSpec};
use kura_sim::{DiskSpec, Outcome, Sim};

/// Of six disks each is full to three quarters: what one holds fits on the others, and what two hold does not.
#[test]
fn what_moves_off_one_disk_is_not_free_for_another() {
    for fails in [false, true] {
        let sim = Sim::new(5);
        let names = ["fast0", "slow0", "slow1", "slow2", "slow3", "slow4", "slow5"];
        let sizes = names.map(|name| (name, if name == "fast0" { 18 } else { 16 }));
        let disks: Vec<_> = sizes.map(|(name, mib)| sim.disk(name, DiskSpec::nvme(mib << 20))).into();
        let pool = PoolSpec {
            uuid: [9; 16],
            extent_bytes: 64 << 10,
            controllers: CONTROLLERS,
            journal_bytes: 5 << 20,
            floating_percent: 0,
        };
        crate::rig::format(&sim, &disks, 1, &pool);
        let rig = Rig { sim, disks };
        let done = rig.run(&names, async |node, _| {
            let size_bytes = (node.pool().await.unwrap().data_bytes / 8 * 3).next_multiple_of(1 << 20);
            let spec =
                VolumeSpec { name: "thick".into(), size_bytes, layout: Layout::Mirror, thick: true, read_only: false };
            node.create_volume(spec).await.unwrap();
            if fails {
                node.fail_disk(DeviceId(2), false).await.unwrap();
            } else {
                node.remove_disk(DeviceId(2)).await.unwrap();
            }
            let refused = node.remove_disk(DeviceId(3)).await.unwrap_err();
            assert_eq!(refused.kind(), Kind::Full, "{refused}");
            assert_eq!(node.pool().await.unwrap().disks[3].state, DiskState::Healthy);
            // Nothing more is promised to one that takes nothing already.
            node.remove_disk(DeviceId(2)).await.unwrap();
        });
        assert_eq!(done, Outcome::Done(()));
    }
}
