//! What is done to volumes as wholes, in the node and in the model.

use super::reference::{BLOCK, Reference, Versions, Volume};
use super::world::Opened;
use kura_block::{Block, Error, Kind};
use kura_controller::{Controller, Layout, Node, Sharing, SnapshotSpec, VolumeInfo, VolumeSpec};
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
    if reference.at_once {
        // One that is nobody's for a while, or is being made or deleted, may not go.
        return;
    }
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
    if reference.borrow().at_once {
        roll_back_at_once(owner, reference, (&name, snapshot), seed).await;
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

/// The same while a client writes there: a block is what the snapshot had, or what is being written, and what it is in the end is
/// for [`find_out`] to see.
async fn roll_back_at_once(
    owner: &Rc<Controller>,
    reference: &RefCell<Reference>,
    (name, snapshot): (&str, &str),
    seed: u64,
) {
    let bytes = reference.borrow().bytes(snapshot, 0, reference.borrow().volumes[snapshot].blocks.len() * BLOCK);
    {
        let reference = &mut *reference.borrow_mut();
        let size = reference.volumes[name].blocks.len() * BLOCK;
        reference.write(name, 0, &[&bytes[..], &vec![0; size - bytes.len()]].concat());
        reference.volumes.get_mut(name).unwrap().in_doubt = true;
    }
    if let Err(error) = owner.store().roll_back(snapshot).await {
        let reference = reference.borrow();
        let dropped = reference.may_drop(snapshot) && error.kind() == Kind::Missing;
        let refused = error.to_string().contains("being rolled back") || reference.is_busy(&error);
        assert!(dropped || refused, "seed {seed}: {snapshot}: {error}");
    }
}

/// Sees what a volume is that was rolled back, or kept its size after all, while clients wrote there.
pub async fn find_out(device: &dyn Block, reference: &RefCell<Reference>, name: &str, seed: u64) {
    if !reference.borrow().volumes.get(name).is_some_and(|volume| volume.in_doubt) {
        return;
    }
    let read = device.read(0, device.geometry().size_bytes as usize).await;
    let read = read.unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}")).contiguous();
    let reference = &mut *reference.borrow_mut();
    for (block, found) in read.chunks(BLOCK).enumerate() {
        reference.keeps(name, block, found);
    }
    reference.volumes.get_mut(name).unwrap().in_doubt = false;
}

/// Deletes a volume, or is told that others are made of it.
pub async fn delete(controllers: &Opened, reference: &RefCell<Reference>, name: &str, seed: u64) {
    let is_of = |volume: &VolumeInfo| volume.svol.as_ref().is_some_and(|svol| svol.pvol == name);
    let has_children = || controllers.iter().any(|one| one.volumes().iter().any(is_of));
    let had_children = has_children();
    if reference.borrow().is_being_deleted(name) {
        let again = controllers.node.delete_volume(name, true).await;
        assert!(again.is_err(), "seed {seed}: {name} is deleted twice");
        return;
    }
    {
        let reference = &mut *reference.borrow_mut();
        // They may go meanwhile.
        let may_go = !had_children || reference.at_once;
        reference.volumes.get_mut(name).unwrap().deleting = may_go;
    }
    let deleted = controllers.node.delete_volume(name, true).await;
    let reference = &mut *reference.borrow_mut();
    reference.volumes.get_mut(name).unwrap().deleting = false;
    match deleted {
        Ok(()) => {
            assert!(!has_children() && (!had_children || reference.at_once), "seed {seed}: {name}");
            reference.volumes.remove(name);
        }
        Err(error) => {
            let dropped = reference.may_drop(name) && error.kind() == Kind::Missing;
            let has_children = had_children || has_children();
            assert!(has_children || dropped || reference.is_busy(&error), "seed {seed}: {name}: {error}");
        }
    }
}

/// Makes snapshots of one instant, or a clone. What a power cut leaves of them, some, all or none until this is answered, is what
/// their volumes were at that instant, to the last block: what was written before it is durable with it.
pub async fn snapshot(controllers: &Opened, reference: &RefCell<Reference>, wanted: Vec<SnapshotSpec>, seed: u64) {
    let mut acknowledged = Vec::new();
    for SnapshotSpec { of, name, read_only } in &wanted {
        let reference = &mut *reference.borrow_mut();
        let pvol = reference.volumes.get_mut(of).unwrap();
        pvol.versions = true;
        let svol = Volume {
            blocks: pvol.blocks.iter().map(Versions::frozen).collect(),
            versions: true,
            read_only: *read_only,
            resizing: pvol.resizing,
            being_made_of: Some(of.clone()),
            ..Volume::default()
        };
        reference.volumes.insert(name.clone(), svol);
        acknowledged.push(reference.acknowledged(of));
    }
    let made = controllers.node.snapshot(wanted.clone(), 7).await;
    if let Err(error) = made {
        let reference = &mut *reference.borrow_mut();
        let dropped = wanted.iter().any(|spec| reference.may_drop(&spec.of)) && error.kind() == Kind::Missing;
        let refused = error.to_string().contains("being rolled back") || reference.is_busy(&error);
        let deleted = wanted.iter().any(|spec| reference.is_being_deleted(&spec.of)) && error.kind() == Kind::Missing;
        assert!(dropped || refused || deleted, "seed {seed}: {wanted:?}: {error}");
        for SnapshotSpec { name, .. } in &wanted {
            reference.volumes.remove(name);
        }
        return;
    }
    for (SnapshotSpec { of, name, .. }, acknowledged) in wanted.iter().zip(acknowledged) {
        let reference = &mut *reference.borrow_mut();
        assert!(reference.volumes.contains_key(of), "seed {seed}: {name} is made of {of}, which is deleted");
        reference.flushed(of, &acknowledged);
        let made = reference.volumes.get_mut(name).unwrap();
        (made.durable, made.being_made_of) = (true, None);
    }
    // Of what was being written they have one version, for good.
    for SnapshotSpec { name, .. } in wanted.iter().filter(|_| reference.borrow().at_once) {
        let Some(opened) = controllers.iter().find_map(|one| one.open_volume(name).ok()) else { continue };
        let read = opened.read(0, opened.geometry().size_bytes as usize).await.unwrap().contiguous();
        let adopted = reference.borrow_mut().adopt(name, &read);
        adopted.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
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

/// True of what is said of a thick volume that would not fit if all snapshots went: none goes for it.
fn would_not_fit(error: &Error) -> bool {
    error.to_string().contains("more are wanted and the pool has room for")
}

/// Makes a volume; a controller that is drained does not get it.
pub async fn create(
    controllers: &Opened,
    reference: &RefCell<Reference>,
    rng: &mut ChaCha8Rng,
    (name, seed): (String, u64),
) {
    let blocks = rng.random_range(8..200);
    let layouts = [Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating, Layout::None];
    let layouts = if reference.borrow().unmirrored { &layouts[..] } else { &layouts[..4] };
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
            let drained = controllers[usize::from(made.controller)].store().is_drained();
            assert!(!drained || reference.at_once, "{made:?}");
            reference.volumes.get_mut(&name).unwrap().durable = true;
        }
        Err(error) => {
            assert!(reference.refuses(&error), "{name}: {error}");
            println!("{error}");
            if !would_not_fit(&error) {
                none_may_go(controllers, reference, seed);
            }
            reference.volumes.remove(&name);
        }
    }
}

/// Grows a volume, or cuts it; a power cut in the middle may leave either size.
pub async fn resize(
    controllers: &Opened,
    reference: &RefCell<Reference>,
    rng: &mut ChaCha8Rng,
    (name, seed): (&str, u64),
) {
    let mut blocks = rng.random_range(8..200);
    let resized = async |blocks: usize| controllers.node.resize_volume(name, (blocks * BLOCK) as u64, true).await;
    if reference.borrow().volumes[name].read_only {
        let kind = resized(blocks).await.unwrap_err().kind();
        let dropped = kind == Kind::Missing && reference.borrow().may_drop(name);
        assert!(kind == Kind::ReadOnly || dropped, "seed {seed}: {name}: {kind:?}");
        return;
    }
    let before = reference.borrow().volumes[name].blocks.len();
    if reference.borrow().volumes[name].versions {
        blocks = blocks.max(before);
    }
    if blocks < before {
        // What is cut off may be gone although the old size is still there.
        let cut = vec![0; (before - blocks) * BLOCK];
        reference.borrow_mut().write(name, blocks * BLOCK, &cut);
    }
    reference.borrow_mut().resizes(name, blocks);
    if let Err(error) = resized(blocks).await {
        let refused = blocks > before && reference.borrow_mut().refuses(&error);
        let busy = reference.borrow().is_busy(&error);
        let has_snapshots = blocks < before && reference.borrow().volumes[name].versions;
        assert!(refused || busy || has_snapshots, "seed {seed}: {name}: {error}");
        if !would_not_fit(&error) {
            none_may_go(controllers, &reference.borrow(), seed);
        }
        let opened = controllers.iter().find_map(|one| one.open_volume(name).ok()).unwrap();
        let now = opened.geometry().size_bytes as usize / BLOCK;
        assert!((blocks.min(before)..=before).contains(&now), "seed {seed}: {name}: {now} of {before} blocks");
        // What was to be cut off may be as it was or not.
        reference.borrow_mut().volumes.get_mut(name).unwrap().in_doubt = blocks < before;
        blocks = now;
    }
    let mut reference = reference.borrow_mut();
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
