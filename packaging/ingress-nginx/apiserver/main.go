// The part of a cluster that an ingress controller talks to, in one process: etcd, kube-apiserver, and of the controller
// manager the one that makes EndpointSlices of Services and Pods. There are no nodes and no containers: who runs it says in
// the status of Pods which addresses they have.
//
//	apiserver --folder DIR [--port 6443]
//
// DIR gets the data and `ca.crt`; a file `tokens.csv` in it names the users (token, name, id, groups). It says `ready` on
// the standard output when it serves.
//
// The controller does not start with a server that does not know its own version, which only the linker can say:
//
//	go build -o apiserver -ldflags "-X k8s.io/component-base/version.gitVersion=v1.35.3 \
//	  -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=35"
package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
)

func main() {
	folder := flag.String("folder", "", "where data and certificates are")
	port := flag.Int("port", 6443, "where the API is served")
	token := flag.String("token", "admin", "a token of the group system:masters, for this program")
	services := flag.String("services", "10.2.0.0/16", "the addresses of services")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	etcd := startEtcd(filepath.Join(*folder, "etcd"), *port+1)
	defer etcd.Close()
	key := filepath.Join(*folder, "accounts.key")
	writeKey(key)
	command := app.NewAPIServerCommand()
	command.SetArgs([]string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", *port+1),
		"--bind-address=127.0.0.1",
		"--advertise-address=10.1.0.254",
		fmt.Sprintf("--secure-port=%d", *port),
		"--cert-dir=" + *folder,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key,
		"--service-cluster-ip-range=" + *services,
		"--token-auth-file=" + filepath.Join(*folder, "tokens.csv"),
		"--authorization-mode=RBAC",
		// Pods have no service accounts here, and nothing runs in them.
		"--disable-admission-plugins=ServiceAccount",
	})
	go serveSlices(ctx, &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", *port),
		BearerToken:     *token,
		QPS:             2000,
		Burst:           4000,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	})
	if err := command.ExecuteContext(ctx); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// One member, on the loopback network.
func startEtcd(folder string, port int) *embed.Etcd {
	config := embed.NewConfig()
	config.Dir = folder
	config.LogLevel = "error"
	config.UnsafeNoFsync = true
	client := url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)}
	peer := url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port+1)}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		fail(err)
	}
	<-etcd.Server.ReadyNotify()
	return etcd
}

func writeKey(path string) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		fail(err)
	}
	block := &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		fail(err)
	}
}

// Waits for the API, and runs the controller.
func serveSlices(ctx context.Context, config *rest.Config) {
	client := kubernetes.NewForConfigOrDie(config)
	for {
		body, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil && string(body) == "ok" {
			break
		}
		if ctx.Err() != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	core := factory.Core().V1()
	controller := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(),
		factory.Discovery().V1().EndpointSlices(), 100, client, 0)
	factory.Start(ctx.Done())
	fmt.Println("ready")
	controller.Run(ctx, 4)
}
