#!/bin/sh
# Installs Weir from this directory: ./install.sh [--prefix DIR] [--no-service]
#
# As root the program goes to /usr/local/sbin, with a service of its own. For another user it goes to ~/.local/bin, alone.
# uninstall.sh, which is put beside this file, removes what was installed; configuration and sites stay.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
prefix=
service=yes
while [ $# -gt 0 ]; do
	case $1 in
	--prefix)
		prefix=${2:?--prefix needs a directory}
		shift 2
		;;
	--no-service)
		service=no
		shift
		;;
	*)
		echo "usage: $0 [--prefix DIR] [--no-service]" >&2
		exit 2
		;;
	esac
done

# Before anything is written: another architecture, or a C library that is too old, shows here.
if ! "$here/weir" -v 2>/dev/null; then
	"$here/weir" -v >&2 || true
	echo "install.sh: this program does not run on this machine; nothing was installed" >&2
	exit 1
fi

is_root=no
[ "$(id -u)" = 0 ] && is_root=yes
if [ $is_root = yes ]; then
	prefix=${prefix:-/usr/local}
	programs=$prefix/sbin
else
	prefix=${prefix:-$HOME/.local}
	programs=$prefix/bin
	service=no
fi
[ -d /run/systemd/system ] || service=no

removal=$here/uninstall.sh
printf '#!/bin/sh\n# Removes what install.sh has installed.\nset -u\n' >"$removal"
chmod 755 "$removal"

# put MODE FROM TO: a new file takes the place of one that runs, and never changes it.
put() {
	install -d "$(dirname "$3")"
	install -m "$1" "$2" "$3.new"
	mv -f "$3.new" "$3"
	printf "rm -f '%s'\n" "$3" >>"$removal"
}

if [ $service = yes ]; then
	echo 'systemctl disable --now weir.service' >>"$removal"
fi
put 755 "$here/weir" "$programs/weir"
put 644 "$here/man/weir.8" "$prefix/share/man/man8/weir.8"
put 644 "$here/man/weir.conf.5" "$prefix/share/man/man5/weir.conf.5"
put 644 "$here/completions/weir.bash" "$prefix/share/bash-completion/completions/weir"
put 644 "$here/completions/_weir" "$prefix/share/zsh/site-functions/_weir"
put 644 "$here/completions/weir.fish" "$prefix/share/fish/vendor_completions.d/weir.fish"

if [ $service = yes ]; then
	# What an administrator may have changed is left as it is.
	install -d /etc/weir/conf.d
	for file in weir.conf mime.types; do
		[ -e "/etc/weir/$file" ] || install -m 644 "$here/etc/$file" "/etc/weir/$file"
	done
	put 644 "$here/etc/sysusers.conf" /etc/sysusers.d/weir.conf
	put 644 "$here/etc/tmpfiles.conf" /etc/tmpfiles.d/weir.conf
	sed "s,/usr/sbin/weir,$programs/weir,g" "$here/weir.service" >"$here/weir.service.filled"
	put 644 "$here/weir.service.filled" /etc/systemd/system/weir.service
	rm -f "$here/weir.service.filled"
	systemd-sysusers weir.conf
	systemd-tmpfiles --create weir.conf || true
	install -d -o weir -g weir -m 755 /var/lib/weir
	install -d -o weir -g weir -m 750 /var/log/weir
	if [ ! -e /var/lib/weir/site ]; then
		install -d -m 755 /var/lib/weir/site
		install -m 644 "$here/etc/index.html" /var/lib/weir/site/index.html
	fi
	systemctl daemon-reload
	echo 'systemctl daemon-reload' >>"$removal"
	echo "installed $programs/weir; start it with: systemctl enable --now weir"
else
	echo "installed $programs/weir"
fi
