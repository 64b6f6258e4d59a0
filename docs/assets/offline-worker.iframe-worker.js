/* Browsers start no worker for a page that was opened from a folder. There, a hidden frame stands for the search's
   worker: its script runs in the frame, and messages go both ways as events. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      const load = address => new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = address;
        script.onload = done;
        script.onerror = failed;
        inside.document.body.append(script);
      });
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(url);
      this.postMessage = data =>
        this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
      this.terminate = () => frame.remove();
    }
  };
}
