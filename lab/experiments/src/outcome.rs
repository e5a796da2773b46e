//! The results of an experiment as files: a folder of CSV, Vega-Lite and one JSON object that says what they are.

use crate::experiment::{About, Scale, Setting};
use crate::figure::Figure;
use crate::files::Unfinished;
use crate::findings::{Criterion, Findings, Table};
use crate::machine::{COMMIT, Machine};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use std::path::Path;

/// The JSON object of a finished experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The experiment's name.
    pub experiment: String,
    /// The paper and figure it is about, or "beyond".
    pub paper: String,
    /// What it shows.
    pub shows: String,
    /// The command that made it.
    pub command: String,
    /// All that is random follows from it.
    pub seed: u64,
    /// How much was done.
    pub scale: Scale,
    /// The program that made it.
    pub commit: String,
    /// The machine that made it.
    pub machine: Machine,
    /// What each point was made with, by the point's name.
    pub configuration: serde_json::Map<String, Json>,
    /// Verdicts.
    pub criteria: Vec<Criterion>,
    /// Tables among the files.
    pub tables: Vec<Shown>,
    /// Figures among the files.
    pub figures: Vec<Shown>,
    /// All files, in the report's folder.
    pub files: Vec<String>,
}

/// A table or a figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// Its file, in the report's folder.
    pub file: String,
    /// One line above it.
    pub title: String,
    /// What it shows, in words; empty for a table.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caption: String,
}

/// The file of the JSON object, in the experiment's folder.
const FILE: &str = "result.json";
/// The table that says what made the others, among them.
const RUN: &str = "run";

impl Outcome {
    /// Writes what the experiment found into its folder.
    pub fn write(
        about: About,
        setting: &Setting,
        configuration: serde_json::Map<String, Json>,
        findings: Findings,
    ) -> Result<Self> {
        let file = |name: &str, extension: &str| format!("{}/{name}.{extension}", about.name);
        let tables = findings.tables.iter().map(|table| Shown {
            file: file(&table.name, "csv"),
            title: table.title.clone(),
            caption: String::new(),
        });
        let figures = findings.figures.iter().map(|figure| Shown {
            file: file(&figure.name, "vl.json"),
            title: figure.title.clone(),
            caption: figure.caption.clone(),
        });
        let (tables, figures): (Vec<_>, Vec<_>) = (tables.collect(), figures.collect());
        let files = tables.iter().chain(&figures).map(|shown| shown.file.clone());
        let files = files.chain([file(RUN, "csv")]).collect();
        let outcome = Self {
            experiment: about.name.to_owned(),
            paper: about.paper.to_owned(),
            shows: about.shows.to_owned(),
            command: command(about.name, setting),
            seed: setting.seed,
            scale: setting.scale,
            commit: COMMIT.to_owned(),
            machine: Machine::this(),
            configuration,
            criteria: findings.criteria,
            tables,
            figures,
            files,
        };
        outcome.write_files(&setting.out, &findings.tables, &findings.figures)?;
        Ok(outcome)
    }

    /// Writes all there is before anything takes its place: a disk that is full leaves the older result.
    fn write_files(&self, out: &Path, tables: &[Table], figures: &[Figure]) -> Result<()> {
        let mut files =
            vec![Unfinished::new(out.join(&self.experiment).join(format!("{RUN}.csv")), self.run()?.as_bytes())?];
        for (table, shown) in tables.iter().zip(&self.tables) {
            files.push(Unfinished::new(out.join(&shown.file), table.csv()?.as_bytes())?);
        }
        for (figure, shown) in figures.iter().zip(&self.figures) {
            let mut spec = figure.spec.clone();
            spec["usermeta"] = self.made_by();
            files.push(Unfinished::new(out.join(&shown.file), &serde_json::to_vec(&spec)?)?);
        }
        let object = serde_json::to_string_pretty(self)?;
        // Last, so that what it names is there.
        files.push(Unfinished::new(out.join(&self.experiment).join(FILE), object.as_bytes())?);
        self.replace_older(out);
        files.into_iter().try_for_each(Unfinished::keep)
    }

    /// What made it, but for the configuration of each point, which is long.
    fn made_by(&self) -> Json {
        let Self { experiment, command, seed, scale, commit, machine, .. } = self;
        json!({
            "experiment": experiment, "command": command, "seed": seed, "scale": scale, "commit": commit,
            "machine": machine,
        })
    }

    /// The same with all configurations as CSV, a key and its value a line: what the tables beside it are of.
    fn run(&self) -> Result<String> {
        let mut table = Table::new(RUN, "", &["key", "value"]);
        let text = |value: &Json| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut all = self.made_by();
        all["configuration"] = Json::Object(self.configuration.clone());
        for (key, value) in all.as_object().into_iter().flatten() {
            match value {
                Json::Object(parts) => {
                    parts
                        .iter()
                        .for_each(|(part, value)| table.row([format!("{key}.{part}").into(), text(value).into()]));
                }
                value => table.row([key.as_str().into(), text(value).into()]),
            }
        }
        table.csv()
    }

    /// Removes the object of an earlier run and those of its files that this run does not write.
    fn replace_older(&self, out: &Path) {
        let folder = out.join(&self.experiment);
        if let Ok(older) = Self::read(&folder.join(FILE)) {
            let gone = older.files.iter().filter(|file| !self.files.contains(file));
            // Only the experiment's own: a file may have been edited by anyone.
            let own = gone.filter_map(|file| Path::new(file).file_name());
            own.for_each(|file| drop(std::fs::remove_file(folder.join(file))));
        }
        drop(std::fs::remove_file(folder.join(FILE)));
    }

    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_slice(&text)
            .with_context(|| format!("{} is not a result; run the experiment again", path.display()))
    }

    /// Every finished experiment in the report's folder, by name; an error in the place of one that cannot be read.
    pub fn all(out: &Path) -> Result<Vec<Result<Self>>> {
        let folders = std::fs::read_dir(out).with_context(|| format!("reading {}", out.display()))?;
        let folders = folders.map(|entry| entry.map(|entry| entry.path().join(FILE)));
        let mut paths = folders.collect::<Result<Vec<_>, _>>()?;
        paths.retain(|path| path.is_file());
        paths.sort();
        Ok(paths.iter().map(|path| Self::read(path)).collect())
    }

    /// How many criteria hold.
    pub fn holding(&self) -> usize {
        self.criteria.iter().filter(|criterion| criterion.holds).count()
    }
}

/// The command that does the same again.
fn command(name: &str, setting: &Setting) -> String {
    let Setting { scale, seed, traces, .. } = setting;
    let traces = traces.iter().map(|path| format!(" --trace {}", word(&path.display().to_string())));
    format!("kura lab run {name} --{scale} --seed {seed}{}", traces.collect::<String>())
}

/// Text as a word of a shell's line.
pub fn word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./,:=+@%".contains(&byte);
    if text.bytes().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_one_that_a_shell_understands() {
        let traces = ["a b.csv", "it's.csv", "load:zipf,theta=1.2"].map(std::path::PathBuf::from).to_vec();
        let setting = Setting { scale: Scale::Quick, seed: 3, traces, out: "lab-report".into() };
        assert_eq!(
            command("tier-traces", &setting),
            r"kura lab run tier-traces --quick --seed 3 --trace 'a b.csv' --trace 'it'\''s.csv' --trace load:zipf,theta=1.2"
        );
    }
}
