# run.sh ROOT DEBS: a machine with twenty sites is taken over by Weir and given back, under load.
#
# ROOT is a fresh Debian 12 (`debootstrap --variant=minbase bookworm ROOT`) with nginx, libnginx-mod-stream, php-fpm, php-mysql, php-xml,
# wordpress, wordpress-theme-twentytwentythree, mariadb-server, python3-django, gunicorn, curl, procps, openssl. DEBS has the packages of
# `cargo xtask deb`. As root; everything runs in namespaces of its own.
set -eu
if [ "${WEIR_DEMONSTRATION:-}" != inside ]; then
    root=$(realpath "$1")
    mkdir -p "$root/demonstration"
    cp "$(dirname "$0")"/*.sh "$(dirname "$0")/load.py" "$2"/*.deb "$root/demonstration/"
    exec env WEIR_DEMONSTRATION=inside unshare --mount --pid --fork --kill-child --net --uts \
        sh -c 'mount --make-rprivate / && exec chroot "$0" sh /demonstration/run.sh' "$root"
fi
cd /demonstration
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
mountpoint -q /proc || mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir -p /run/lock
[ -e /dev/urandom ] || mount -t devtmpfs dev /dev
ip link set lo up
sh sites.sh
nginx -t
# By its path, as its unit does: that is what it executes when it changes its binary.
/usr/sbin/nginx
echo "== nginx serves"
# WordPress is set up through nginx.
curl -sS -o /dev/null -H 'Host: blog.test' --data 'weblog_title=blog&user_name=word&admin_password=word-word-word&admin_password2=word-word-word&pw_weak=1&admin_email=a@b.test' \
    'http://127.0.0.1/wp-admin/install.php?step=2'
now() { date +%s.%N; }
step() { # NAME COMMAND…
    name=$1; shift
    began=$(now)
    if "$@" > "$name.log" 2>&1; then ended=ok; else ended="failed: $?"; fi
    echo "== $name: $ended after $(echo "$(now) $began" | awk '{ printf "%.2f", $1 - $2 }') s; port 80 is served by $(curl -sSI http://127.0.0.1/ -H 'Host: plain.test' | grep -i '^server' | tr -d '\r')"
}
python3 load.py "${SECONDS_OF_LOAD:-100}" > load.log 2> load.err &
load=$!
sleep 5
step install apt-get install -y --no-install-recommends ./weir-bin_*.deb ./weir_*.deb
sleep 2
step takeover weir takeover --yes --requests 60
sleep 15
step undo weir takeover --undo --yes
sleep 10
step divert apt-get install -y --no-install-recommends ./weir-nginx_*.deb
sleep 10
step remove apt-get remove -y weir-nginx
wait $load || true
cat load.log
echo "errors: $(wc -l < load.err)"
head -20 load.err
