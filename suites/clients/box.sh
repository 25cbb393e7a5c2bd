# box.sh BINARY FOLDER SCRIPT [ARGUMENT]: runs SCRIPT where BINARY is /usr/sbin/nginx, as its package would put it there.
#
# In namespaces of its own (mounts, processes, network), so that ports 80 and 443, /etc and /var are the box's: what is changed
# there is gone afterwards. SCRIPT prints what it sees; everything else goes to FOLDER/client.log.
set -e
if [ "$WEIR_BOX" != inside ]; then
    exec env WEIR_BOX=inside unshare --mount --pid --fork --kill-child --mount-proc --net --uts sh "$0" "$@"
fi
binary=$1
script=$(realpath "$3")
argument=${4:-}
box=$(realpath "$2")/box
mount --make-rprivate /
ip link set lo up
hostname box
mkdir -p "$box"
mount -t tmpfs tmpfs "$box"
for name in etc var; do
    mkdir -p "$box/$name" "$box/work-$name"
    mount -t overlay overlay -o "lowerdir=/$name,upperdir=$box/$name,workdir=$box/work-$name" "/$name"
done
mount -t tmpfs tmpfs /run
mkdir -p /run/lock
# What weir-nginx records when it is installed.
mkdir -p /var/lib/weir-nginx
/usr/sbin/nginx -V 2>/var/lib/weir-nginx/nginx-V
cp "$binary" "$box/nginx"
mount --bind "$box/nginx" /usr/sbin/nginx
# A machine as the package leaves it: other modules of this one are not the box's matter.
rm -rf /etc/nginx/sites-enabled/* /etc/nginx/conf.d/* /etc/nginx/modules-enabled/* /var/log/nginx
mkdir -p /var/log/nginx /var/www/html
chown www-data:adm /var/log/nginx
echo page >/var/www/html/index.html
ln -s /etc/nginx/sites-available/default /etc/nginx/sites-enabled/default
sed -i 's/listen \[::\]:80/#&/' /etc/nginx/sites-available/default
cd "$box"
exec sh -u "$script" "$argument"
