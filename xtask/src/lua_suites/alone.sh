# Runs a file of the suites in namespaces of its own, with the services that it speaks to.
ip link set lo up
memcached -u nobody -l 127.0.0.1 -p 11211 -U 11211 &
redis-server --save '' --port 6379 >/dev/null &
for service in 11211 6379; do
    until perl -MIO::Socket::INET -e "exit !IO::Socket::INET->new('127.0.0.1:$service')"; do :; done
done
# Not the last command: the shell stays process 1, which has to wait for what the server leaves behind.
perl -MRobust "$1"
exit $?
