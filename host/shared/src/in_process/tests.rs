use super::*;
use futures::executor::block_on;
use kura_block::Kind;
use kura_snapshot::method::EntryId;
use proptest::prelude::*;
use std::collections::BTreeSet;

const DEVICE: DeviceId = DeviceId(3);

fn ids(numbers: &[u32]) -> Vec<EntryId> {
    numbers.iter().copied().map(EntryId).collect()
}

#[derive(Clone, Debug)]
enum Step {
    Adopt(Vec<u32>),
    Lease(u32),
    GiveBack(Vec<u32>),
    Grow(u32),
}

fn step() -> impl Strategy<Value = (u16, Step)> {
    let numbers = || prop::collection::vec(0..70_u32, 0..6);
    let step = prop_oneof![
        2 => numbers().prop_map(Step::Adopt),
        4 => (0..12_u32).prop_map(Step::Lease),
        4 => numbers().prop_map(Step::GiveBack),
        1 => (0..64_u32).prop_map(Step::Grow),
    ];
    (0..3_u16, step)
}

/// The holder of each extent: the whole truth, kept in the plainest way.
type Model = Vec<Option<u16>>;

/// Does the step to the model; the answer, and what it leases.
fn step_model(model: &mut Model, owner: u16, step: &Step) -> std::result::Result<Vec<u32>, Kind> {
    match step {
        Step::Adopt(numbers) => {
            let mut adopted = model.clone();
            for &number in numbers {
                let holder = adopted.get_mut(number as usize).ok_or(Kind::Invalid)?;
                if holder.replace(owner).is_some() {
                    return Err(Kind::Corrupt);
                }
            }
            *model = adopted;
            Ok(vec![])
        }
        Step::Lease(count) => {
            let free = (0..model.len()).filter(|&number| model[number].is_none());
            let leased: Vec<u32> = free.take(*count as usize).map(|number| number as u32).collect();
            for &number in &leased {
                model[number as usize] = Some(owner);
            }
            Ok(leased)
        }
        Step::GiveBack(numbers) => {
            let distinct: BTreeSet<u32> = numbers.iter().copied().collect();
            let is_held = |number: &u32| model.get(*number as usize) == Some(&Some(owner));
            if distinct.len() < numbers.len() || !numbers.iter().all(is_held) {
                return Err(Kind::Invalid);
            }
            for &number in numbers {
                model[number as usize] = None;
            }
            Ok(vec![])
        }
        Step::Grow(count) if (*count as usize) < model.len() => Err(Kind::Invalid),
        Step::Grow(count) => {
            model.resize(*count as usize, None);
            Ok(vec![])
        }
    }
}

fn step_shared(shared: &InProcess, way: &dyn ControlMemory, step: &Step) -> std::result::Result<Vec<u32>, Kind> {
    let nothing = |()| vec![];
    let result = match step {
        Step::Adopt(numbers) => block_on(way.adopt(None, ids(numbers))).map(nothing),
        Step::Lease(count) => block_on(way.take(*count)),
        Step::GiveBack(numbers) => block_on(way.release(ids(numbers))).map(nothing),
        Step::Grow(count) => block_on(shared.add_device(DEVICE, *count)).map(nothing),
    };
    result.map(|leased| leased.iter().map(|entry| entry.0).collect()).map_err(|error| error.kind())
}

proptest! {
    #[test]
    fn agrees_with_a_plain_vector(steps in prop::collection::vec(step(), 1..60)) {
        let shared = InProcess::new();
        let mut model: Model = vec![None; 20];
        block_on(shared.add_device(DEVICE, 20)).unwrap();
        let ways = [0, 1, 2].map(|owner| block_on(shared.memory(ControllerId(owner), DEVICE)).unwrap());
        for (owner, step) in steps {
            let way = &*ways[usize::from(owner)];
            prop_assert_eq!(step_shared(&shared, way, &step), step_model(&mut model, owner, &step), "{:?}", step);
            let free = model.iter().filter(|holder| holder.is_none()).count();
            prop_assert_eq!(block_on(shared.free(DEVICE)).unwrap() as usize, free);
        }
    }
}

#[test]
fn an_extent_with_two_owners_names_both() {
    let shared = InProcess::new();
    block_on(shared.add_device(DEVICE, 8)).unwrap();
    let [one, two] = [1, 2].map(|owner| block_on(shared.memory(ControllerId(owner), DEVICE)).unwrap());
    block_on(one.adopt(None, ids(&[5]))).unwrap();
    let error = block_on(two.adopt(None, ids(&[4, 5]))).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert_eq!(error.to_string(), "pool entry 5: controller 2 holds it and so does controller 1: check the pool");
    assert_eq!(block_on(shared.free(DEVICE)).unwrap(), 7);
    let unknown = block_on(shared.memory(ControllerId(0), DeviceId(9))).err().map(|error| error.kind());
    assert_eq!(unknown, Some(Kind::Missing));
}
