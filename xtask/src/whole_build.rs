//! One build of the whole workspace, with what tests need; everything that is run afterwards is started from there.
//!
//! With each other choice of packages or features cargo would compile third-party crates and ours once more, because the features of a
//! dependency are those that the chosen packages want together.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use xtask::Outcome;
use xtask::shell::{self, cargo};

const BUILD: Duration = Duration::from_secs(15 * 60);
const SUITE: Duration = Duration::from_secs(10 * 60);

/// What is chosen.
const EVERYTHING: [&str; 4] = [
    "--workspace",
    "--all-targets",
    "--features",
    "weir/debug-stall",
];

/// What a build has made.
pub(crate) struct WholeBuild {
    /// Where the programs are.
    folder: PathBuf,
    tests: Vec<TestProgram>,
    profile: &'static [&'static str],
}

/// A program of tests, and the folder of its package, in which it is started.
struct TestProgram {
    path: PathBuf,
    package: PathBuf,
    /// It is of a library or a program itself, and not of a file below `tests`.
    is_of_units: bool,
}

impl WholeBuild {
    /// Builds, with optimization if `release`.
    pub(crate) fn run(release: bool) -> Result<WholeBuild, String> {
        let profile: &[&str] = if release { &["--release"] } else { &[] };
        let mut build = cargo();
        build.arg("build").args(EVERYTHING).args(profile);
        build.arg("--message-format=json-render-diagnostics");
        let mut tests = Vec::new();
        let done = shell::lines(&mut build, BUILD, &mut |line| {
            tests.extend(test_program(line))
        })?;
        if !done {
            return Err("the workspace does not build".to_owned());
        }
        let target = std::path::absolute(shell::target()).map_err(|error| error.to_string())?;
        Ok(WholeBuild {
            folder: target.join(if release { "release" } else { "debug" }),
            tests,
            profile,
        })
    }

    /// A program by its name.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Runs all unit tests and the examples in the documentation.
    pub(crate) fn unit_tests(&self) -> Outcome {
        let units = self.tests.iter().filter(|test| !test.is_integration());
        let waiting = Mutex::new(units);
        let next = || waiting.lock().ok().and_then(|mut units| units.next());
        let failed = Mutex::new(Vec::new());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Several programs at a time: the last test of one may be a long one, on one processor.
        std::thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    while let Some(test) = next() {
                        let outcome = shell::output(&mut test.command(), SUITE);
                        let text = outcome.as_ref().unwrap_or_else(|text| text);
                        println!("{}:{text}", test.path.display());
                        if outcome.is_err()
                            && let Ok(mut failed) = failed.lock()
                        {
                            failed.push(test.path.display().to_string());
                        }
                    }
                });
            }
        });
        let failed = failed.into_inner().unwrap_or_default();
        if !failed.is_empty() {
            return Err(format!("unit tests failed: {}", failed.join(", ")));
        }
        let mut examples = cargo();
        examples.args(["test", "--quiet", "--doc", "--workspace"]);
        examples.args(["--features", "weir/debug-stall"]);
        shell::run(examples.args(self.profile), BUILD)
    }

    /// The program of the integration tests, which starts the server that was built.
    pub(crate) fn integration_tests(&self) -> Result<Command, String> {
        let test = self.tests.iter().find(|test| test.is_integration());
        let test = test.ok_or("the integration tests were not built")?;
        let mut command = test.command();
        command
            .env_remove("ORACLE")
            .env("WEIR_BIN", self.program("weir"));
        Ok(command)
    }
}

impl TestProgram {
    /// Cargo builds a second program in that package, of the library that is the harness, which has no tests. Which of the two
    /// comes first is chance.
    fn is_integration(&self) -> bool {
        self.package.ends_with("tests") && !self.is_of_units
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.package);
        command
    }
}

/// The program of tests that a line of cargo's messages is about, if it is about one.
fn test_program(line: &str) -> Option<TestProgram> {
    let (_, built) = line.split_once("\"profile\":{")?;
    let (profile, _) = built.split_once('}')?;
    let is_test = profile.contains("\"test\":true");
    let text = |name: &str| {
        let (_, value) = line.split_once(&format!("\"{name}\":\""))?;
        Some(PathBuf::from(value.split_once('"')?.0))
    };
    let manifest = text("manifest_path")?;
    is_test.then_some(TestProgram {
        path: text("executable")?,
        package: manifest.parent()?.to_owned(),
        is_of_units: !line.contains(r#""kind":["test"]"#),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_tests_are_found_among_the_messages() {
        let of = |test: bool, executable: &str| {
            test_program(&format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/base/Cargo.toml","target":{{"kind":["lib"],"test":true}},"profile":{{"opt_level":"0","test":{test}}},"executable":{executable}}}"#
            ))
        };
        let found = of(true, "\"/w/target/debug/deps/base-1\"").expect("a program");
        assert_eq!(found.path, PathBuf::from("/w/target/debug/deps/base-1"));
        assert_eq!(found.package, PathBuf::from("/w/crates/base"));
        assert!(!found.is_integration());
        assert!(of(false, "\"/w/target/debug/weir\"").is_none());
        assert!(of(true, "null").is_none());
        assert!(test_program(r#"{"reason":"build-finished","success":true}"#).is_none());
        for (kind, is_integration) in [("lib", false), ("test", true)] {
            let line = format!(
                r#"{{"manifest_path":"/w/tests/Cargo.toml","target":{{"kind":["{kind}"]}},"profile":{{"test":true}},"executable":"/w/t"}}"#
            );
            let found = test_program(&line).expect("a program");
            assert_eq!(found.is_integration(), is_integration, "{kind}");
        }
    }
}
