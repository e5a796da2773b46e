//! `cargo xtask figures`: a report's figures as static SVG, and the pictures that the docs show.

use crate::{needs, shell};
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Whose figures.
#[derive(clap::Args)]
pub struct Args {
    /// A report's folder: draw each of its figures as SVG, beside its data. Without it: make the docs' pictures anew.
    report: Option<PathBuf>,
}

/// Draws the figures.
pub fn run(args: &Args) -> Result<()> {
    match &args.report {
        Some(report) => to_svg(report),
        None => docs(),
    }
}

/// What draws: a Python package that works without a network once it is here.
const DRAWER: &str = "vl-convert-python==1.9.0.post1";

/// Draws each figure of a report, beside its data. It takes no more than Python, to which it adds what draws.
pub fn to_svg(report: &Path) -> Result<()> {
    needs::ensure_python()?;
    let folder = shell::target("figures/python")?;
    if !folder.join("bin/python").exists() {
        shell::run(shell::command("python3", ["-m", "venv"]).arg(&folder))?;
    }
    let python = |args: &[&OsStr]| shell::run(&mut shell::command(&folder.join("bin/python").to_string_lossy(), args));
    python(&["-m", "pip", "install", "--quiet", DRAWER].map(OsStr::new))?;
    let program = shell::root().join("xtask/src/figures/to_svg.py");
    python(&[program.as_os_str(), std::path::absolute(report)?.as_os_str()])
}

/// Draws each figure of a report, and fails where one is without a picture.
pub fn test(report: &Path) -> Result<()> {
    let figures = || -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for experiment in std::fs::read_dir(report)?.collect::<std::io::Result<Vec<_>>>()? {
            let files = std::fs::read_dir(experiment.path()).into_iter().flatten().filter_map(std::io::Result::ok);
            found.extend(files.map(|file| file.path()).filter(|path| path.to_string_lossy().ends_with(".vl.json")));
        }
        Ok(found)
    };
    let figures = figures().with_context(|| report.display().to_string())?;
    ensure!(!figures.is_empty(), "{}: a report without figures", report.display());
    to_svg(report)?;
    for figure in figures {
        let picture = figure.with_extension("").with_extension("svg");
        let drawn = std::fs::read_to_string(&picture).with_context(|| picture.display().to_string())?;
        let marks = drawn.matches("<path").count();
        ensure!(drawn.starts_with("<svg") && marks > 3, "{}: {marks} marks are no figure", picture.display());
    }
    Ok(())
}

/// Experiments the docs show, and the figures of them.
const EXPERIMENTS: &[&str] = &[
    "array-load",
    "device-model",
    "replicate-balance",
    "replicate-contention",
    "snapshot-message",
    "snapshot-methods",
    "trace-anatomy",
];
const FIGURES: &[&str] = &["device-model/mg1", "array-load/distances", "snapshot-methods/save-ratio"];

/// Runs the experiments, and makes of them `docs/figures/` and a picture of the report.
fn docs() -> Result<()> {
    needs::ensure_browser()?;
    let report = shell::target("figures/lab-report")?;
    let kura = shell::target("release")?.join("kura");
    shell::run(&mut shell::cargo(["build", "--release", "--package", "kura"]))?;
    let kura = |args: &[&str]| shell::run(shell::command(&kura.to_string_lossy(), args).arg("--out").arg(&report));
    kura(&[&["lab", "run"], EXPERIMENTS].concat())?;
    to_svg(&report)?;
    let folder = shell::root().join("docs/figures");
    std::fs::create_dir_all(&folder)?;
    for figure in FIGURES {
        let from = report.join(figure).with_extension("svg");
        let to = folder.join(format!("{}.svg", figure.replace('/', "-")));
        std::fs::copy(&from, &to).with_context(|| format!("copying {}", from.display()))?;
    }
    picture(&report.join("index.html"), &shell::root().join("docs/lab-report.png"))
}

/// A picture of a page's beginning, down to the first figure, as a browser shows it.
fn picture(page: &Path, to: &Path) -> Result<()> {
    let mut chromium = shell::command("chromium", ["--headless", "--disable-gpu", "--disable-dev-shm-usage"]);
    if shell::is_root() {
        chromium.arg("--no-sandbox");
    }
    chromium.args(["--hide-scrollbars", "--window-size=1100,2240", "--virtual-time-budget=60000"]);
    chromium.arg(format!("--screenshot={}", to.display()));
    shell::output(chromium.arg(format!("file://{}", page.display())))?;
    println!("{}", to.display());
    Ok(())
}
