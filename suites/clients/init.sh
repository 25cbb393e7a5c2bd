# Debian's script of System V, nginx's own signals, and what watches processes by their titles.
script=/etc/init.d/nginx
say() { printf '%s: ' "$1"; shift; "$@" >said 2>&1; echo "$?"; }
page() { echo "page: $(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1/)"; }
pid() { cat /run/nginx.pid; }
until_other() { for _ in $(seq 100); do [ -s /run/nginx.pid ] && [ "$(pid)" != "$1" ] && break; sleep 0.05; done; }
say 'status before' $script status
say start $script start
page
say 'start again' $script start
say status $script status
echo "title of the master: $(ps -o args= -p "$(pid)")"
echo "titles of its children: $(ps -o args= --ppid "$(pid)" | sort -u)"
echo "name of the processes: $(ps -C nginx -o comm= | sort -u)"
[ "$(pgrep -o -x nginx)" = "$(pid)" ] && echo 'pgrep -x finds it'
[ "$(pgrep -f '^nginx: master process')" = "$(pid)" ] && echo 'pgrep -f finds it'
pgrep -f '^nginx: worker process' >/dev/null && echo 'workers are found'
pidof nginx >/dev/null && echo 'pidof finds it'
say reload $script reload
say 'reload by service' service nginx reload
say configtest $script configtest
mv /var/log/nginx/access.log /var/log/nginx/access.log.1
page
say rotate $script rotate
# The master makes the file, and the worker writes to it once the signal has arrived.
for _ in $(seq 100); do [ -s /var/log/nginx/access.log ] && break; page >/dev/null; sleep 0.05; done
[ -s /var/log/nginx/access.log ] && echo 'the new log is written to'
echo "the log belongs to: $(stat -c '%U %G %a' /var/log/nginx/access.log)"
old=$(pid)
say upgrade $script upgrade
until_other "$old"
page
[ "$(pid)" != "$old" ] && echo 'another process'
for _ in $(seq 100); do [ -d "/proc/$old" ] || break; sleep 0.05; done
[ -d "/proc/$old" ] || echo 'the old one is gone'
old=$(pid)
say restart $script restart
[ "$(pid)" != "$old" ] && echo 'another process'
echo 'server { retrun 1; }' >/etc/nginx/sites-enabled/bad
say 'test of a bad file' nginx -t
grep -c 'unknown directive "retrun" in /etc/nginx/sites-enabled/bad:1' said
tail -n 1 said
say 'reload of it' $script reload
say 'restart of it' $script restart
say 'nginx -s reload of it' nginx -s reload
page
rm /etc/nginx/sites-enabled/bad
nginx -t 2>&1
nginx -t -q 2>&1 && echo 'nginx -t -q says nothing'
# As ansible's handlers, cron and hooks call it: without a terminal, with little of an environment.
say 'nginx -s reload' env -i /usr/sbin/nginx -s reload
say 'nginx -s reopen' env -i /usr/sbin/nginx -s reopen
page
cat >monitrc <<'MONIT'
set daemon 1 with start delay 0
set pidfile /run/monit.pid
set statefile /run/monit.state
set idfile /run/monit.id
set httpd unixsocket /run/monit.sock allow root:root
check process nginx with pidfile /run/nginx.pid
  if failed port 80 protocol http request "/" status = 200 then alert
check process master matching "^nginx: master process"
check program test with path "/usr/sbin/nginx -t" if status != 0 then alert
MONIT
chmod 600 monitrc
monit -c "$PWD/monitrc" >/dev/null
for _ in $(seq 60); do
    monit -c "$PWD/monitrc" -B status >monit.out 2>&1 && ! grep -q -E 'Initializing|not monitored' monit.out && break
    sleep 0.5
done
grep -E '^(Process|Program)|^ *status ' monit.out | tr -s ' '
monit -c "$PWD/monitrc" quit >/dev/null
say stop $script stop
say 'status after' $script status
say 'stop again' $script stop
[ -e /run/nginx.pid ] || echo 'no pid file is left'
