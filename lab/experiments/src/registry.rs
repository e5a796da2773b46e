//! All experiments there are.

use crate::experiment::About;
use crate::plan::Listed;
use anyhow::{Result, bail};

/// Every experiment, in the order of the list.
const ALL: &[&dyn Listed] = &[
    &crate::device_model::DeviceModel::TRUE,
    &crate::trace_anatomy::TraceAnatomy,
    &crate::snapshot::SnapshotMessage { costs: crate::snapshot::Costs::PAPER },
    &crate::snapshot::SnapshotMethods { costs: crate::snapshot::Costs::PAPER },
    &crate::array_load::ArrayLoad,
    &crate::array::ArrayResponse,
    &crate::array::ArrayRebuild,
    &crate::tier::TierPolicies,
    &crate::tier::TierTraces,
    &crate::replicate::Contention { model: crate::replicate::Model::PAPER },
    &crate::replicate::Balance::of(crate::replicate::Model::PAPER),
    &crate::replicate::Real,
    &crate::object_stores::ObjectStores,
];

/// What every experiment is about.
pub fn list() -> Vec<About> {
    ALL.iter().map(|experiment| experiment.about()).collect()
}

/// The experiments of these names; an unknown one is told with the nearest there is.
pub fn named(names: &[String]) -> Result<Vec<&'static dyn Listed>> {
    names.iter().map(|name| one(name)).collect()
}

fn one(name: &str) -> Result<&'static dyn Listed> {
    let nearness = |listed: &&&dyn Listed| (strsim::jaro_winkler(name, listed.about().name) * 1e6) as u64;
    match ALL.iter().max_by_key(nearness) {
        Some(listed) if listed.about().name == name => Ok(*listed),
        Some(listed) => bail!("no experiment {name}: did you mean {}? `kura lab list` lists them", listed.about().name),
        None => bail!("no experiment {name}: there is none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_unknown_ones_told_with_the_nearest() {
        let names: Vec<String> = list().iter().map(|about| about.name.to_owned()).collect();
        assert_eq!(named(&names).unwrap().len(), names.len());
        let error = named(&["device-modle".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("device-modle") && error.contains("device-model?"), "{error}");
    }
}
