//! `weir entrypoint`, the first process of a container, in a root directory of its own. The image itself is run by
//! `cargo xtask image --check`.

use weir_tests::{Finished, run_with_mounts, skip_on_oracle};

const WHY: &str = "it is a part of Weir's images";

/// A root with the programs of this machine, our binary, and what an image has.
const ROOT: &str = r#"
mount -t tmpfs tmpfs /mnt
cd /mnt
mkdir -p dev proc host/usr usr/sbin etc/nginx/conf.d etc/nginx/templates/sub docker-entrypoint.d run tmp usr/share/nginx
mount --rbind /usr host/usr
mount --rbind /dev dev
mount --rbind /proc proc
for name in bin lib lib64; do ln -s "host/usr/$name" "$name"; ln -s "../host/usr/$name" "usr/$name"; done
cp "$SERVER" usr/sbin/weir
ln -s weir usr/sbin/nginx
printf 'worker_processes auto;\nevents { }\n' >etc/nginx/nginx.conf
printf 'server {\n    listen       8080;\n}\n' >etc/nginx/conf.d/default.conf
cp etc/nginx/conf.d/default.conf usr/share/nginx/default.conf
printf 'nameserver 192.0.2.1\nnameserver 2001:db8::1\n' >etc/resolv.conf
step() { printf '#!/usr/sbin/weir entrypoint\n' >"docker-entrypoint.d/$1"; chmod 755 "docker-entrypoint.d/$1"; }
step 10-listen-on-ipv6-by-default.sh
step 15-local-resolvers.envsh
step 20-envsubst-on-templates.sh
step 30-tune-worker-processes.sh
run() { chroot . /usr/sbin/weir entrypoint "$@"; }
"#;

fn in_root(script: &str) -> Option<Finished> {
    if skip_on_oracle(WHY) {
        return None;
    }
    let finished = run_with_mounts(&format!("{ROOT}\n{script}"))?;
    assert_eq!(finished.code, 0, "{}{}", finished.stdout, finished.stderr);
    Some(finished)
}

#[test]
fn templates_are_filled_with_what_scripts_have_exported() {
    let script = r#"
printf 'echo noise\nexport SITE=blue\n' >docker-entrypoint.d/9-site.envsh
printf '#!/bin/sh\necho "last $SITE" >/tmp/seen\n' >docker-entrypoint.d/100-last.sh
printf '#!/bin/sh\nrm /tmp/seen\n' >docker-entrypoint.d/200-off.sh
chmod 755 docker-entrypoint.d/9-site.envsh docker-entrypoint.d/100-last.sh
echo '$SITE ${SITE} $host $SITES ${NGINX_LOCAL_RESOLVERS}' >etc/nginx/templates/site.conf.template
echo 'deep $SITE' >etc/nginx/templates/sub/deep.conf.template
echo 'stream $SITE' >etc/nginx/templates/tcp.conf.stream-template
export NGINX_ENTRYPOINT_LOCAL_RESOLVERS=1 NGINX_ENTRYPOINT_WORKER_PROCESSES_AUTOTUNE=1
run nginx -v
cat etc/nginx/conf.d/site.conf etc/nginx/conf.d/sub/deep.conf etc/nginx/stream-conf.d/tcp.conf tmp/seen
cat etc/nginx/conf.d/default.conf
grep -v '^worker_processes' etc/nginx/nginx.conf
"#;
    let Some(finished) = in_root(script) else {
        return;
    };
    assert_eq!(
        finished.stdout,
        "blue blue $host $SITES 192.0.2.1 [2001:db8::1]\ndeep blue\nstream blue\nlast blue\n\
         server {\n    listen       8080;\n    listen  [::]:8080;\n}\n\
         # Set by 30-tune-worker-processes.sh, before:\n#worker_processes auto;\nevents { }\n\n\
         stream {\n    include /etc/nginx/stream-conf.d/*.conf;\n}\n"
    );
    for line in [
        "noise",
        "200-off.sh, not executable",
        "Configuration complete; ready for start up",
        "nginx version: nginx/",
    ] {
        assert!(finished.stderr.contains(line), "{}", finished.stderr);
    }
}

#[test]
fn variables_choose_places_and_names() {
    let script = r#"
mkdir -p in out
echo '$APP_NAME $HOME_PAGE' >in/a.conf.tmpl
printf 'server { }\n' >etc/nginx/conf.d/default.conf
export APP_NAME=x HOME_PAGE=y NGINX_ENVSUBST_FILTER=^APP_ NGINX_ENVSUBST_TEMPLATE_DIR=/in
export NGINX_ENVSUBST_TEMPLATE_SUFFIX=.tmpl NGINX_ENVSUBST_OUTPUT_DIR=/out NGINX_ENTRYPOINT_QUIET_LOGS=1
run nginx -v
cat out/a.conf etc/nginx/conf.d/default.conf
run /bin/sh -c 'echo another command'
"#;
    let Some(finished) = in_root(script) else {
        return;
    };
    assert_eq!(
        finished.stdout,
        "x $HOME_PAGE\nserver { }\nanother command\n"
    );
    assert!(
        !finished.stderr.contains("entrypoint"),
        "{}",
        finished.stderr
    );
}

#[test]
fn a_script_that_fails_ends_the_container() {
    let script = r#"
printf '#!/bin/sh\nexit 3\n' >docker-entrypoint.d/40-fails.sh
chmod 755 docker-entrypoint.d/40-fails.sh
if run nginx -v; then exit 9; fi
rm docker-entrypoint.d/40-fails.sh
printf 'false\n' >docker-entrypoint.d/40-fails.envsh
chmod 755 docker-entrypoint.d/40-fails.envsh
if run nginx -v; then exit 9; fi
code=0; run /no/such/program || code=$?
echo "$code"
"#;
    let Some(finished) = in_root(script) else {
        return;
    };
    assert_eq!(finished.stdout, "127\n");
    assert!(
        !finished.stderr.contains("nginx version"),
        "{}",
        finished.stderr
    );
}
