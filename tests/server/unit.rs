//! `weir unit`: the sandbox for nginx's unit, made from the configuration.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use weir_tests::{server_path, skip_on_oracle};

const WHY: &str = "nginx prints no unit";

/// A folder with a configuration, gone at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, configuration: &str) -> Folder {
        let name = format!("weir-test-unit-{name}-{}", std::process::id());
        // Not in the temporary folder, which the output depends on.
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        for folder in ["site", "cache", "logs", "dav"] {
            std::fs::create_dir_all(path.join(folder)).expect("the target folder is writable");
        }
        let text = configuration.replace("%%DIR%%", &path.display().to_string());
        std::fs::write(path.join("nginx.conf"), text).expect("a file");
        Folder(path)
    }

    fn unit(&self, more: &[&str]) -> Output {
        let mut command = Command::new(server_path());
        let command = command.arg("unit").args(more).arg("-c");
        command
            .arg(self.0.join("nginx.conf"))
            .output()
            .expect("it runs")
    }

    /// The AppArmor profile, which AppArmor's own program can read, if there is one.
    fn profile(&self) -> String {
        let output = self.unit(&["--apparmor"]);
        assert!(output.status.success(), "{output:?}");
        let path = self.0.join("profile");
        std::fs::write(&path, &output.stdout).expect("a file");
        let mut parser = Command::new("apparmor_parser");
        // Without the kernel and a cache of what was read.
        let read = parser.args(["-Q", "-K"]).arg(&path).output();
        if let Ok(read) = read {
            assert!(read.status.success(), "{read:?}");
        }
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The lines of the drop-in.
    fn lines(&self) -> Vec<String> {
        let output = self.unit(&[]);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{output:?}");
        text.lines().map(str::to_owned).collect()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const MAIN: &str = "pid %%DIR%%/logs/nginx.pid; error_log %%DIR%%/logs/error.log; events {}";

#[track_caller]
fn assert_has(lines: &[String], expected: &[String]) {
    for line in expected {
        assert!(lines.contains(line), "{line} is not in {lines:#?}");
    }
}

#[test]
fn the_sandbox_permits_what_is_named() {
    if skip_on_oracle(WHY) {
        return;
    }
    let site = Folder::new(
        "named",
        &format!(
            "{MAIN} http {{ access_log off; proxy_cache_path %%DIR%%/cache keys_zone=z:1m; \
             server {{ listen 80; root %%DIR%%/site; location ~ x {{ proxy_pass http://unix:/tmp/app.sock; }} }} }}"
        ),
    );
    let lines = site.lines();
    let writable = |name: &str| format!("ReadWritePaths=-{}", site.path(name));
    assert_has(
        &lines,
        &[
            writable("cache"),
            writable("logs"),
            "ProtectSystem=strict".to_owned(),
            "PrivateTmp=no".to_owned(),
            // A regular expression is compiled to machine code.
            "MemoryDenyWriteExecute=no".to_owned(),
        ],
    );
    assert!(!lines.contains(&writable("site")), "a root is only read");
    site.profile();
}

#[test]
fn what_is_not_named_is_closed() {
    if skip_on_oracle(WHY) {
        return;
    }
    let plain = Folder::new(
        "plain",
        &format!("{MAIN} http {{ access_log off; server {{ listen 80; root %%DIR%%/site; }} }}"),
    );
    let capabilities = |lines: &[String]| {
        let line = lines
            .iter()
            .find(|line| line.starts_with("CapabilityBoundingSet="));
        line.cloned().unwrap_or_default()
    };
    let lines = plain.lines();
    // The target folder may itself be there.
    let tmp = if plain.0.starts_with("/tmp") {
        "no"
    } else {
        "yes"
    };
    assert_has(
        &lines,
        &[
            format!("PrivateTmp={tmp}"),
            "NoNewPrivileges=yes".to_owned(),
        ],
    );
    assert!(!capabilities(&lines).contains("CAP_SYS_"), "{lines:#?}");
    let more = Folder::new(
        "more",
        &format!(
            "worker_rlimit_nofile 1000; worker_priority -5; {MAIN} http {{ access_log off; \
             server {{ listen unix:%%DIR%%/dav/a.sock; root /home; location / {{ dav_methods PUT; }} }} }}"
        ),
    );
    let lines = more.lines();
    let writable = format!("ReadWritePaths=-{}", more.path("dav"));
    let expected = [
        "ReadWritePaths=-/home".to_owned(),
        writable,
        "ProtectHome=read-only".to_owned(),
    ];
    assert_has(&lines, &expected);
    let set = capabilities(&lines);
    assert!(
        set.contains("CAP_SYS_RESOURCE") && set.contains("CAP_SYS_NICE"),
        "{set}"
    );
}

/// A path is a word of the unit, whatever is in it.
#[test]
fn paths_are_written_as_the_unit_reads_them() {
    if skip_on_oracle(WHY) {
        return;
    }
    let odd = Folder::new(
        "odd",
        &format!(
            "{MAIN} http {{ access_log off; proxy_cache_path '%%DIR%%/cache/a b%i' keys_zone=z:1m; \
             proxy_cache_path '%%DIR%%/cache/a\nUser=nobody' keys_zone=y:1m; server {{ listen 80; }} }}"
        ),
    );
    for name in ["cache/a b%i", "cache/a\nUser=nobody"] {
        std::fs::create_dir_all(odd.0.join(name)).expect("the target folder is writable");
    }
    let lines = odd.lines();
    let expected = format!("ReadWritePaths=\"-{}\"", odd.path("cache/a b%%i"));
    assert_has(&lines, &[expected]);
    assert!(
        !lines.iter().any(|line| line.contains("nobody")),
        "{lines:#?}"
    );
    let profile = odd.profile();
    assert!(profile.contains("cache/a b%i/{,**}\" rwkl,"), "{profile}");
    assert!(!profile.contains("nobody"), "{profile}");
}

#[test]
fn an_invalid_configuration_makes_no_unit() {
    if skip_on_oracle(WHY) {
        return;
    }
    let bad = Folder::new("bad", "events {} http { server { retrun 1; } }");
    let output = bad.unit(&[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("unknown directive \"retrun\""), "{errors}");
    let output = bad.unit(&["nonsense"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("usage: weir unit"));
}
