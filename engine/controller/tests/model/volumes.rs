//! What is done to volumes as wholes, in the node and in the model.

use super::reference::{BLOCK, Reference, Versions, Volume};
use super::world::Opened;
use kura_block::Kind;
use kura_controller::{Controller, Layout, Node, Sharing, SnapshotSpec, VolumeSpec};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::rc::Rc;

/// Forgets the snapshots that a full pool has dropped; nothing else goes by itself.
pub fn forget_dropped(controllers: &[Rc<Controller>], reference: &mut Reference, seed: u64) {
    let here: Vec<String> = controllers.iter().flat_map(|one| one.volumes()).map(|volume| volume.spec.name).collect();
    let gone: Vec<String> = reference.volumes.keys().filter(|name| !here.contains(name)).cloned().collect();
    for name in gone {
        assert!(reference.may_drop(&name), "seed {seed}: {name} is gone");
        println!("{name} was dropped");
        reference.volumes.remove(&name);
        reference.dropped += 1;
    }
}

/// A pool that drops snapshots has just refused something: no controller has one that may go, but where shares are fixed, which
/// is when those of others are no use. One whose volume is being rolled back may have to stay for that.
pub fn none_may_go(controllers: &[Rc<Controller>], reference: &Reference, seed: u64) {
    let of_use = controllers.iter().filter(|one| one.store().sharing().0 != Sharing::Aggregate);
    for owner in of_use {
        for volume in owner.volumes() {
            let name = &volume.spec.name;
            let rolls = owner.store().check_roll_back(name);
            let stays = rolls.is_err_and(|error| error.to_string().contains("being rolled back"));
            let may_go = reference.may_drop(name) && volume.open == 0 && volume.snapshots == 0 && !stays;
            assert!(!may_go, "seed {seed}: the pool was said to be full, and {name} could go");
        }
    }
}

/// Rolls a volume back to a snapshot that is not larger; beyond its end the volume reads as zeroes.
pub async fn roll_back(owner: &Rc<Controller>, reference: &RefCell<Reference>, snapshot: &str, seed: u64) {
    let volumes = owner.store().volumes();
    let svol = volumes.iter().find(|volume| volume.spec.name == snapshot).unwrap();
    let name = svol.svol.clone().unwrap().pvol;
    let pvol = volumes.iter().find(|volume| volume.spec.name == name).unwrap();
    if pvol.spec.read_only || pvol.spec.size_bytes < svol.spec.size_bytes {
        assert!(owner.store().roll_back(snapshot).await.is_err(), "seed {seed}");
        return;
    }
    let size = pvol.spec.size_bytes as usize;
    let mut bytes = reference.borrow().bytes(snapshot, 0, svol.spec.size_bytes as usize);
    bytes.resize(size, 0);
    reference.borrow_mut().write(&name, 0, &bytes);
    match owner.store().roll_back(snapshot).await {
        Ok(_) => reference.borrow_mut().acknowledge(&name, 0, size / BLOCK, true),
        // One at a time.
        Err(error) => {
            let dropped = reference.borrow().may_drop(snapshot) && error.kind() == Kind::Missing;
            assert!(dropped || error.to_string().contains("being rolled back"), "seed {seed}: {error}");
            reference.borrow_mut().undo(&name, 0, size / BLOCK);
        }
    }
}

/// Deletes a volume, or is told that others are made of it.
pub async fn delete(owner: &Rc<Controller>, reference: &RefCell<Reference>, name: &str, seed: u64) {
    let children =
        owner.store().volumes().iter().any(|volume| volume.svol.as_ref().is_some_and(|svol| svol.pvol == name));
    reference.borrow_mut().volumes.get_mut(name).unwrap().deleting = !children;
    match owner.store().delete(name).await {
        Ok(()) => {
            assert!(!children, "seed {seed}: {name}");
            reference.borrow_mut().volumes.remove(name);
        }
        Err(error) => {
            let dropped = reference.borrow().may_drop(name) && error.kind() == Kind::Missing;
            assert!(children || dropped, "seed {seed}: {name}: {error}");
            reference.borrow_mut().volumes.get_mut(name).unwrap().deleting = false;
        }
    }
}

/// Makes snapshots of one instant, or a clone. What a power cut leaves of them, some, all or none until this is answered, is what
/// their volumes were at that instant, to the last block: what was written before it is durable with it.
pub async fn snapshot(node: &Node, reference: &RefCell<Reference>, wanted: Vec<SnapshotSpec>) {
    let mut acknowledged = Vec::new();
    for SnapshotSpec { of, name, read_only } in &wanted {
        let reference = &mut *reference.borrow_mut();
        let pvol = reference.volumes.get_mut(of).unwrap();
        pvol.versions = true;
        let blocks = pvol.blocks.iter().map(Versions::frozen).collect();
        let svol = Volume { blocks, versions: true, read_only: *read_only, ..Volume::default() };
        reference.volumes.insert(name.clone(), svol);
        acknowledged.push(reference.acknowledged(of));
    }
    let made = node.snapshot(wanted.clone(), 7).await;
    let reference = &mut *reference.borrow_mut();
    if let Err(error) = made {
        let dropped = wanted.iter().any(|spec| reference.may_drop(&spec.of)) && error.kind() == Kind::Missing;
        assert!(dropped || error.to_string().contains("being rolled back"), "{wanted:?}: {error}");
        for SnapshotSpec { name, .. } in &wanted {
            reference.volumes.remove(name);
        }
        return;
    }
    for (SnapshotSpec { of, name, .. }, acknowledged) in wanted.iter().zip(acknowledged) {
        reference.flushed(of, &acknowledged);
        reference.volumes.get_mut(name).unwrap().durable = true;
    }
}

/// Moves a volume, unless it does not come to rest.
pub async fn move_volume(node: &Node, name: &str, to: u16, seed: u64) {
    match node.move_volume(name, to).await {
        Ok(moved) => println!("{name} moved to {to}: {moved:?}"),
        Err(error) => assert!(error.kind() == Kind::Busy, "seed {seed}: {name} does not move: {error}"),
    }
}

/// Has a controller give all its volumes away, or take volumes again.
pub async fn drain_or_resume(controllers: &Opened, reference: &RefCell<Reference>, controller: u16, seed: u64) {
    let drained = controllers.iter().find(|one| one.store().is_drained());
    if let Some(drained) = drained {
        println!("controller {} takes volumes again", drained.id().0);
        controllers.node.resume(drained.id().0).await.unwrap();
        return;
    }
    let drained = controllers.node.drain(controller).await.unwrap();
    println!("controller {controller} is drained: {drained:?}");
    for (name, error) in &drained.stays {
        let dropped = reference.borrow().may_drop(name) && error.kind() == Kind::Missing;
        assert!(dropped || error.kind() == Kind::Busy, "seed {seed}: {name} does not move: {error}");
    }
    for left in controllers[usize::from(controller)].volumes() {
        let told = drained.stays.iter().any(|(name, _)| *name == left.spec.name);
        assert!(told, "seed {seed}: {} was left behind", left.spec.name);
    }
}

/// Makes a volume; a controller that is drained does not get it.
pub async fn create(
    controllers: &Opened,
    reference: &RefCell<Reference>,
    rng: &mut ChaCha8Rng,
    (name, seed): (String, u64),
) {
    let blocks = rng.random_range(8..200);
    let layouts = [Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::None];
    let layouts = if reference.borrow().unmirrored { &layouts[..] } else { &layouts[..3] };
    let spec = VolumeSpec {
        name: name.clone(),
        size_bytes: (blocks * BLOCK) as u64,
        layout: layouts[rng.random_range(0..layouts.len())],
        thick: rng.random_bool(0.2),
        read_only: false,
    };
    let volume = Volume { blocks: vec![Versions::default(); blocks], ..Volume::default() };
    reference.borrow_mut().volumes.insert(name.clone(), volume);
    let made = controllers.node.create_volume(spec).await;
    let reference = &mut *reference.borrow_mut();
    match made {
        Ok(made) => {
            assert!(!controllers[usize::from(made.controller)].store().is_drained(), "{made:?}");
            reference.volumes.get_mut(&name).unwrap().durable = true;
        }
        Err(error) => {
            assert!(reference.refuses(&error), "{name}: {error}");
            println!("{error}");
            // None goes for a thick volume that would not fit without any.
            if !error.to_string().contains("more are wanted and the pool has room for") {
                none_may_go(controllers, reference, seed);
            }
            reference.volumes.remove(&name);
        }
    }
}

/// Grows a volume, or cuts it; a power cut in the middle may leave either size.
pub async fn resize(
    (controllers, controller): (&Opened, &Rc<Controller>),
    reference: &RefCell<Reference>,
    rng: &mut ChaCha8Rng,
    (name, seed): (&str, u64),
) {
    controller.store().flush().await.unwrap();
    let acknowledged = reference.borrow().acknowledged(name);
    reference.borrow_mut().flushed(name, &acknowledged);
    let mut blocks = rng.random_range(8..200);
    if reference.borrow().volumes[name].read_only {
        let resized = controller.store().resize(name, (blocks * BLOCK) as u64).await;
        let kind = resized.unwrap_err().kind();
        assert!(
            kind == Kind::ReadOnly || kind == Kind::Missing && reference.borrow().may_drop(name),
            "{name}: {kind:?}"
        );
        return;
    }
    let before = acknowledged.len();
    if reference.borrow().volumes[name].versions {
        blocks = blocks.max(before);
    }
    if blocks < before {
        // What is cut off may be gone although the old size is still there.
        let cut = vec![0; (before - blocks) * BLOCK];
        reference.borrow_mut().write(name, blocks * BLOCK, &cut);
    }
    reference.borrow_mut().volumes.get_mut(name).unwrap().resizing = Some(blocks);
    let resized = controller.store().resize(name, (blocks * BLOCK) as u64).await;
    let reference = &mut *reference.borrow_mut();
    if let Err(error) = resized {
        assert!(blocks > before && reference.refuses(&error), "{name}: {error}");
        none_may_go(controllers, reference, seed);
        blocks = before;
    }
    let volume = reference.volumes.get_mut(name).unwrap();
    volume.blocks.resize(blocks, Versions::default());
    volume.resizing = None;
}

/// Where two members of a family differ must be among what is told of them, however many answers that takes.
pub async fn changes(owner: &Controller, reference: &RefCell<Reference>, [earlier, later]: [&str; 2], seed: u64) {
    let (mut told, mut next) = (Vec::new(), Some(0));
    while let Some(offset) = next {
        match owner.changed(earlier, later, offset..u64::MAX).await {
            Ok(found) => {
                told.extend(found.ranges);
                next = found.next_offset;
            }
            Err(error) => {
                let dropped = [earlier, later].iter().any(|name| reference.borrow().may_drop(name));
                assert!(dropped, "seed {seed}: {earlier}, {later}: {error}");
                return;
            }
        }
    }
    let reference = reference.borrow();
    let (before, after) = (&reference.volumes[earlier].blocks, &reference.volumes[later].blocks);
    assert!(told.windows(2).all(|pair| pair[0].end <= pair[1].start), "seed {seed}: {earlier}, {later}: {told:?}");
    for (at, block) in after.iter().enumerate() {
        let alike = before.get(at).is_some_and(|before| before.now() == block.now());
        let is_told = told.iter().any(|range| range.contains(&((at * BLOCK) as u64)));
        assert!(alike || is_told, "seed {seed}: {earlier} and {later} differ at block {at}, and only {told:?} is told");
    }
}
