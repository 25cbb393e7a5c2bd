# Debian's snippet, run as its timer does: rotated, compressed, no line lost, and the server writes to the new files.
nginx
ask() { curl -s -o /dev/null "http://127.0.0.1/$1"; }
# The snippet calls invoke-rc.d, which asks a policy; a container's says no.
rm -f /usr/sbin/policy-rc.d
printf '#!/bin/sh\nexit 0\n' >policy; chmod 755 policy; mkdir -p /run/policy
snippet=/etc/logrotate.d/nginx
grep -c 'invoke-rc.d nginx rotate' $snippet
sed -i 's#invoke-rc.d nginx rotate.*#/etc/init.d/nginx rotate >/dev/null 2>\&1#' $snippet
chmod 755 /var/log/nginx
for round in 1 2 3; do
    for number in 1 2 3 4 5; do ask "round-$round-$number"; done
    inode=$(stat -c %i /var/log/nginx/access.log)
    logrotate --force --state "$PWD/state" $snippet; echo "logrotate: $?"
    # nginx opens the file anew when the worker has got the signal; a request finds out.
    for _ in $(seq 100); do
        ask probe
        grep -q probe /var/log/nginx/access.log && break
        sleep 0.02
    done
    [ "$(stat -c %i /var/log/nginx/access.log)" != "$inode" ] && echo 'another file'
done
ls /var/log/nginx | sed 's/^/there is /'
for name in /var/log/nginx/access.log*; do
    case $name in *.gz) zcat "$name" ;; *) cat "$name" ;; esac
done | grep -o 'round-[0-9-]*' | sort | uniq -c | tr -s ' '
stat -c '%n %U %G %a' /var/log/nginx/access.log /var/log/nginx/error.log
pkill -QUIT -o -x nginx
