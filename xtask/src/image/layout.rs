//! An OCI image layout: a folder of blobs that are named by their hash, and an index of the images in it.
//!
//! ```text
//! oci-layout, index.json     index → manifest of each image, with its name
//! blobs/sha256/…             manifest → configuration and layers; a layer is a tar file, compressed by gzip
//! ```
//!
//! An image for several architectures is an index of its own, with a manifest for each.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use xtask::{Outcome, shell};

use super::{ImageLayers, LIMIT, write};
use crate::dist::sha256;

/// User and group of the server; the number is that of the official image.
const USER: &str = "101:101";

/// The media type of an index.
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A layout that is being written.
pub(super) struct OciLayout {
    folder: PathBuf,
    epoch: u64,
    images: Vec<OciImage>,
}

/// A blob, as a descriptor refers to it.
#[derive(Clone)]
struct OciBlob {
    kind: &'static str,
    sum: String,
    size: u64,
}

/// A layer: the compressed blob, and the hash of what it is when it is not compressed.
#[derive(Clone)]
pub(super) struct ImageLayer {
    blob: OciBlob,
    plain_sum: String,
}

struct OciImage {
    name: &'static str,
    architecture: &'static str,
    manifest: OciBlob,
    compressed: u64,
}

impl OciLayout {
    pub(super) fn new(folder: &Path, epoch: u64) -> Result<OciLayout, String> {
        let folder = std::path::absolute(folder).map_err(|error| error.to_string())?;
        write(
            &folder.join("oci-layout"),
            br#"{"imageLayoutVersion":"1.0.0"}"#,
        )?;
        fs::create_dir_all(folder.join("blobs/sha256")).map_err(|error| error.to_string())?;
        Ok(OciLayout {
            folder,
            epoch,
            images: Vec::new(),
        })
    }

    /// A layer from a folder, all root's but for the places of the server.
    pub(super) fn add_tree(
        &mut self,
        tree: &Path,
        of_the_server: &[&str],
    ) -> Result<ImageLayer, String> {
        let tar = self.folder.join("layer.tar");
        let _ = fs::remove_file(&tar);
        let list = find(tree)?;
        let is_servers = |path: &&String| {
            of_the_server
                .iter()
                .any(|place| Path::new(path.as_str()).starts_with(place))
        };
        let (servers, others): (Vec<&String>, Vec<&String>) = list.iter().partition(is_servers);
        for (names, owner) in [(others, "root:0"), (servers, "nginx:101")] {
            self.append(&tar, tree, &names, owner)?;
        }
        self.add_tar(&tar)
    }

    fn append(&self, tar: &Path, tree: &Path, names: &[&String], owner: &str) -> Outcome {
        let list = self.folder.join("layer.list");
        let text: String = names.iter().map(|name| format!("{name}\n")).collect();
        write(&list, text.as_bytes())?;
        let mut command = Command::new("tar");
        command
            .args([
                "--append",
                "--no-recursion",
                "--format=gnu",
                "--numeric-owner",
            ])
            .arg(format!("--mtime=@{}", self.epoch))
            // Group 0 everywhere: engines that choose a user's number give it this group.
            .arg(format!("--owner={owner}"))
            .arg("--group=root:0")
            .arg("--file")
            .arg(tar)
            .arg("--directory")
            .arg(tree)
            .arg("--verbatim-files-from")
            .arg("--files-from")
            .arg(&list);
        shell::output(&mut command, LIMIT)?;
        fs::remove_file(&list).map_err(|error| error.to_string())
    }

    /// A layer from a tar file, which is compressed and then gone.
    pub(super) fn add_tar(&mut self, tar: &Path) -> Result<ImageLayer, String> {
        let plain_sum = sha256(tar)?;
        let compressed = self.folder.join("layer.gz");
        let out = fs::File::create(&compressed).map_err(|error| error.to_string())?;
        let mut gzip = Command::new("gzip");
        gzip.args(["-9nc"]).arg(tar).stdout(out);
        let mut child = gzip.spawn().map_err(|error| format!("gzip: {error}"))?;
        if !shell::wait(&mut child, LIMIT)? {
            return Err(format!("gzip fails on {}", tar.display()));
        }
        fs::remove_file(tar).map_err(|error| error.to_string())?;
        let blob = self.add_file(&compressed, "application/vnd.oci.image.layer.v1.tar+gzip")?;
        Ok(ImageLayer { blob, plain_sum })
    }

    fn add_file(&self, file: &Path, kind: &'static str) -> Result<OciBlob, String> {
        let sum = sha256(file)?;
        let size = fs::metadata(file).map_err(|error| error.to_string())?.len();
        let place = self.folder.join("blobs/sha256").join(&sum);
        fs::rename(file, place).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(OciBlob { kind, sum, size })
    }

    fn add_text(&self, text: &str, kind: &'static str) -> Result<OciBlob, String> {
        let file = self.folder.join("blob");
        write(&file, text.as_bytes())?;
        self.add_file(&file, kind)
    }

    /// An image of these layers. The architecture is in the words of container engines (`amd64`).
    pub(super) fn add_image(
        &mut self,
        name: &'static str,
        architecture: &'static str,
        layers: ImageLayers<'_>,
    ) -> Outcome {
        let configuration = self.add_text(
            &self.configuration(architecture, layers)?,
            "application/vnd.oci.image.config.v1+json",
        )?;
        let blobs = layers.iter().map(|layer| layer.blob.descriptor(""));
        let manifest = format!(
            r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[{}]}}"#,
            configuration.descriptor(""),
            blobs.collect::<Vec<_>>().join(","),
        );
        let manifest = self.add_text(&manifest, "application/vnd.oci.image.manifest.v1+json")?;
        self.images.push(OciImage {
            name,
            architecture,
            manifest,
            compressed: layers.iter().map(|layer| layer.blob.size).sum(),
        });
        Ok(())
    }

    /// What an engine is told of the image.
    fn configuration(&self, architecture: &str, layers: ImageLayers<'_>) -> Result<String, String> {
        let created = shell::output(
            Command::new("date")
                .args(["-u", "+%Y-%m-%dT%H:%M:%SZ"])
                .arg(format!("-d@{}", self.epoch)),
            LIMIT,
        )?;
        let sums = layers
            .iter()
            .map(|layer| format!(r#""sha256:{}""#, layer.plain_sum));
        Ok(format!(
            r#"{{"created":"{created}","architecture":"{architecture}","os":"linux","config":{{"User":"{USER}","ExposedPorts":{{"8080/tcp":{{}}}},"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin","NGINX_VERSION=1.31.5","WEIR_VERSION={version}"],"Entrypoint":["/docker-entrypoint.sh"],"Cmd":["nginx","-g","daemon off;"],"WorkingDir":"/","StopSignal":"SIGQUIT","Labels":{{"org.opencontainers.image.title":"weir","org.opencontainers.image.version":"{version}","org.opencontainers.image.licenses":"{licences}","org.opencontainers.image.source":"{source}"}}}},"rootfs":{{"type":"layers","diff_ids":[{sums}]}}}}"#,
            created = created.trim(),
            version = env!("CARGO_PKG_VERSION"),
            licences = env!("CARGO_PKG_LICENSE"),
            source = env!("CARGO_PKG_REPOSITORY"),
            sums = sums.collect::<Vec<_>>().join(","),
        ))
    }

    /// Writes the index.
    pub(super) fn finish(&self) -> Outcome {
        let names: BTreeSet<&str> = self.images.iter().map(|image| image.name).collect();
        let mut entries = Vec::new();
        // The slim one first.
        for name in names.into_iter().rev() {
            let images = self.images.iter().filter(|image| image.name == name);
            let named =
                format!(r#","annotations":{{"org.opencontainers.image.ref.name":"{name}"}}"#);
            let images: Vec<&OciImage> = images.collect();
            entries.push(match images.as_slice() {
                [image] => image.descriptor(&named),
                several => {
                    let manifests: Vec<String> =
                        several.iter().map(|image| image.descriptor("")).collect();
                    self.add_text(&index(&manifests), INDEX)?.descriptor(&named)
                }
            });
        }
        write(&self.folder.join("index.json"), index(&entries).as_bytes())
    }

    /// A line for each image.
    pub(super) fn images(&self) -> impl Iterator<Item = String> {
        self.images.iter().map(|image| {
            format!(
                "{}:{} {}  sha256:{}  {:.1} MB compressed",
                self.folder.display(),
                image.name,
                image.architecture,
                image.manifest.sum,
                image.compressed as f64 / 1e6
            )
        })
    }
}

impl OciImage {
    fn descriptor(&self, more: &str) -> String {
        self.manifest.descriptor(&format!(
            r#","platform":{{"architecture":"{}","os":"linux"}}{more}"#,
            self.architecture
        ))
    }
}

impl OciBlob {
    fn descriptor(&self, more: &str) -> String {
        let (kind, sum, size) = (self.kind, &self.sum, self.size);
        format!(r#"{{"mediaType":"{kind}","digest":"sha256:{sum}","size":{size}{more}}}"#)
    }
}

fn index(manifests: &[String]) -> String {
    let manifests = manifests.join(",");
    format!(r#"{{"schemaVersion":2,"mediaType":"{INDEX}","manifests":[{manifests}]}}"#)
}

/// All names below a folder, sorted, folders before what is in them.
fn find(tree: &Path) -> Result<Vec<String>, String> {
    let mut command = Command::new("find");
    command
        .current_dir(tree)
        .args([".", "-mindepth", "1", "-printf", "%P\\n"]);
    let text = shell::output(&mut command, LIMIT)?;
    let mut names: Vec<String> = text.lines().map(str::to_owned).collect();
    names.sort_unstable();
    Ok(names)
}
