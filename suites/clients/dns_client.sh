# Questions by UDP and TCP, of dig.
ask() { name=$1; shift; echo "$name: $(dig -p "$PORT" @127.0.0.1 +tries=1 +time=5 +noall +answer +comments "$@" | grep -v -e '^;; Got' -e '^$' -e 'OPT PSEUDO' -e 'Query time' -e 'WARNING: .*recursion' | sed -e 's/id: [0-9]*/id: N/' -e 's/COOKIE: .*/COOKIE/' -e 's/\t[0-9]*\tIN/\tTTL\tIN/' | tr '\n\t' '| ')"; }
PORT=$1
ask "by UDP" one.example A +notcp
ask "by TCP" one.example A +tcp
ask "v6" one.example AAAA
ask "no such" none.example A
ask "long by UDP" long.example TXT +notcp +ignore +bufsize=512
ask "long goes on by TCP" long.example TXT +bufsize=512
ask "long with room" long.example TXT +bufsize=4096
ask "without EDNS" long.example TXT +noedns
ask "reverse" -x 192.0.2.1
ask "many" ten.example A
echo "kept: $(dig -p "$PORT" @127.0.0.1 +tcp +keepopen +short one.example A two.example A one.example A | tr '\n' ' ')"
n=0; for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do dig -p "$PORT" @127.0.0.1 +short one.example A > "dig.$i" & done; wait
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do [ "$(cat "dig.$i")" = 192.0.2.1 ] && n=$((n + 1)); done
echo "at once: $n"
