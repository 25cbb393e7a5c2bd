//! What is in the images.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::{Outcome, shell};

use super::{LIMIT, write};

/// What user 101 may write to, and group 0, for engines that choose the user's number themselves.
pub(super) const OF_THE_SERVER: &[&str] = &[
    "etc/nginx",
    "run",
    "tmp",
    "usr/share/nginx",
    "var/cache/nginx",
    "var/log/nginx",
];

/// Files of the project, and their places.
const COPIES: &[(&str, &str)] = &[
    ("packaging/image/nginx.conf", "etc/nginx/nginx.conf"),
    (
        "packaging/image/default.conf",
        "etc/nginx/conf.d/default.conf",
    ),
    // By this copy a change of the site is seen.
    (
        "packaging/image/default.conf",
        "usr/share/nginx/default.conf",
    ),
    ("packaging/image/nginx-V", "var/lib/weir-nginx/nginx-V"),
    ("examples/mime.types", "etc/nginx/mime.types"),
    ("examples/fastcgi_params", "etc/nginx/fastcgi_params"),
    ("examples/fastcgi.conf", "etc/nginx/fastcgi.conf"),
    ("examples/scgi_params", "etc/nginx/scgi_params"),
    ("examples/uwsgi_params", "etc/nginx/uwsgi_params"),
    (
        "packaging/etc/index.html",
        "usr/share/nginx/html/index.html",
    ),
    ("LICENSE", "usr/share/doc/weir/LICENSE"),
    ("LICENSE-APACHE", "usr/share/doc/weir/LICENSE-APACHE"),
    ("LICENSE-MIT", "usr/share/doc/weir/LICENSE-MIT"),
];

/// The steps before the start; the program that runs them knows them by their names.
const STEPS: &[&str] = &[
    "10-listen-on-ipv6-by-default.sh",
    "15-local-resolvers.envsh",
    "20-envsubst-on-templates.sh",
    "30-tune-worker-processes.sh",
];

const FOLDERS: &[(&str, u32)] = &[
    ("var/cache/nginx", 0o775),
    ("run", 0o775),
    ("tmp", 0o1777),
    ("etc/nginx/templates", 0o775),
    ("etc/nginx/stream-conf.d", 0o775),
];

/// The files of both images.
pub(super) fn write_common(tree: &Path, binary: &Path) -> Outcome {
    for (from, to) in COPIES {
        let content = fs::read(from).map_err(|error| format!("{from}: {error}"))?;
        write(&tree.join(to), &content)?;
    }
    let program = fs::read(binary).map_err(|error| format!("{}: {error}", binary.display()))?;
    write(&tree.join("usr/sbin/weir"), &program)?;
    write(
        &tree.join("docker-entrypoint.sh"),
        b"#!/usr/sbin/weir entrypoint\n",
    )?;
    for step in STEPS {
        let text = "#!/usr/sbin/weir entrypoint\n# The program does it, and knows by this file's name what.\n";
        write(
            &tree.join("docker-entrypoint.d").join(step),
            text.as_bytes(),
        )?;
    }
    link("weir", &tree.join("usr/sbin/nginx"))?;
    fs::create_dir_all(tree.join("var/log/nginx")).map_err(|error| error.to_string())?;
    link("/dev/stdout", &tree.join("var/log/nginx/access.log"))?;
    link("/dev/stderr", &tree.join("var/log/nginx/error.log"))?;
    for (folder, _) in FOLDERS {
        fs::create_dir_all(tree.join(folder)).map_err(|error| error.to_string())?;
    }
    set_modes(tree)?;
    for (folder, mode) in FOLDERS {
        set_mode(&tree.join(folder), *mode)?;
    }
    Ok(())
}

/// What a Debian would have had.
pub(super) fn write_slim(tree: &Path, binary: &Path) -> Outcome {
    for (name, place) in [("passwd", "etc/passwd"), ("group", "etc/group")] {
        let from = Path::new("packaging/image").join(name);
        let text = fs::read(&from).map_err(|error| format!("{}: {error}", from.display()))?;
        write(&tree.join(place), &text)?;
    }
    write(&tree.join("etc/nsswitch.conf"), b"hosts: files dns\n")?;
    let authorities = "etc/ssl/certs/ca-certificates.crt";
    match fs::read(Path::new("/").join(authorities)) {
        Ok(text) => write(&tree.join(authorities), &text)?,
        Err(error) => println!("/{authorities}: {error}; upstream servers cannot be verified"),
    }
    let libraries = libraries(binary)?;
    for library in &libraries {
        let content =
            fs::read(library).map_err(|error| format!("{}: {error}", library.display()))?;
        let place = library.strip_prefix("/").unwrap_or(library);
        write(&tree.join(place), &content)?;
    }
    for (package, licence) in [
        ("libc6", "/usr/share/doc/libc6/copyright"),
        ("libgcc-s1", "/usr/share/doc/gcc-12-base/copyright"),
    ] {
        // A static binary has neither, and another system has its licences elsewhere.
        if let Ok(text) = fs::read(licence)
            && !libraries.is_empty()
        {
            write(
                &tree.join("usr/share/doc").join(package).join("copyright"),
                &text,
            )?;
        }
    }
    set_modes(tree)?;
    for (folder, mode) in FOLDERS {
        set_mode(&tree.join(folder), *mode)?;
    }
    Ok(())
}

/// The shared libraries of a binary and what loads them, as paths of this machine; none for a static one.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>, String> {
    if is_static(binary)? {
        return Ok(Vec::new());
    }
    // The libraries of another architecture are not on this machine.
    if machine(binary)? != std::env::consts::ARCH {
        return Err(format!(
            "{}: a small image for another architecture needs a static binary (cargo xtask dist --target {}-unknown-linux-musl)",
            binary.display(),
            machine(binary)?
        ));
    }
    let text = shell::output(Command::new("ldd").arg(binary), LIMIT)?;
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).collect())
}

/// Whether a binary needs no shared library, by its program headers: no interpreter loads any.
pub(crate) fn is_static(binary: &Path) -> Result<bool, String> {
    let headers = shell::output(Command::new("readelf").arg("-lW").arg(binary), LIMIT)?;
    Ok(!headers.contains("INTERP"))
}

/// The architecture of a binary, as `uname -m` and cargo say it.
pub(crate) fn machine(binary: &Path) -> Result<&'static str, String> {
    Ok(match architecture(binary)? {
        "arm64" => "aarch64",
        _ => "x86_64",
    })
}

/// The architecture of a binary, in the words of container engines.
pub(crate) fn architecture(binary: &Path) -> Result<&'static str, String> {
    use std::io::Read as _;
    let mut head = [0; 20];
    let read = fs::File::open(binary).and_then(|mut file| file.read_exact(&mut head));
    read.map_err(|error| format!("{}: {error}", binary.display()))?;
    // e_machine of the ELF header.
    match u16::from_le_bytes([head[18], head[19]]) {
        62 => Ok("amd64"),
        183 => Ok("arm64"),
        other => Err(format!(
            "{}: machine {other} is not known",
            binary.display()
        )),
    }
}

/// Modes do not depend on this user's umask. The group may write what the server may.
fn set_modes(tree: &Path) -> Outcome {
    let mut waiting = vec![tree.to_owned()];
    while let Some(folder) = waiting.pop() {
        set_mode(&folder, mode_of(tree, &folder, true))?;
        for entry in fs::read_dir(&folder)
            .map_err(|error| error.to_string())?
            .flatten()
        {
            let path = entry.path();
            let kind = entry.file_type().map_err(|error| error.to_string())?;
            if kind.is_dir() {
                waiting.push(path);
            } else if kind.is_file() {
                set_mode(&path, mode_of(tree, &path, false))?;
            }
        }
    }
    Ok(())
}

fn mode_of(tree: &Path, path: &Path, is_folder: bool) -> u32 {
    let place = path.strip_prefix(tree).unwrap_or(path);
    let is_program = ["usr/sbin", "docker-entrypoint.d", "docker-entrypoint.sh"]
        .iter()
        .any(|start| place.starts_with(start))
        || place.to_string_lossy().contains("/ld-linux");
    let group_writes = OF_THE_SERVER.iter().any(|start| place.starts_with(start));
    let mode = if is_folder || is_program {
        0o755
    } else {
        0o644
    };
    if group_writes { mode | 0o020 } else { mode }
}

fn set_mode(path: &Path, mode: u32) -> Outcome {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn link(to: &str, from: &Path) -> Outcome {
    symlink(to, from).map_err(|error| format!("{}: {error}", from.display()))
}
