// A photo for the paint box: chosen, dropped, pasted, or taken with the camera. The event superres-photo has its file.
"use strict";
(() => {
  const {make} = superres;
  const input = make("input", {type: "file"});
  let suffixes = [];  // of pictures: a browser knows no type of some of them
  input.addEventListener("change", () => {
    give(input.files);
    input.value = "";  // the same file can be chosen again
  });

  // Let the visitor choose a file.
  const choose = () => input.click();

  // Take files with these suffixes for pictures, too.
  function accept(known) {
    suffixes = known;
    input.accept = ["image/*", ...known].join();
  }

  const isPicture = ({type, name}) => type.startsWith("image/") || suffixes.some(suffix => name.toLowerCase().endsWith(suffix));

  // Tell the first picture of a list of files, or else the first file: whoever reads it says what is wrong. Return whether there is one.
  function give(files) {
    const all = [...files ?? []], photo = all.find(isPicture) ?? all[0];
    if (photo) document.dispatchEvent(new CustomEvent("superres-photo", {detail: photo}));
    return Boolean(photo);
  }

  // Take pictures that are dropped on an element or pasted into the page, until `signal` is aborted.
  function receive(element, signal) {
    element.addEventListener("dragover", event => event.preventDefault(), {signal});
    element.addEventListener("drop", event => { event.preventDefault(); give(event.dataTransfer.files); }, {signal});
    document.addEventListener("paste", event => { if (element.offsetParent && give(event.clipboardData.files)) event.preventDefault(); }, {signal});
  }

  // Show what the camera sees, until the visitor takes a picture or closes the dialog; `failed` hears why there is none.
  async function photograph(failed) {
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({video: {facingMode: "user"}});
    } catch (error) {
      return failed(`The camera cannot be used (${error.message}). Allow it, or choose a photo.`);
    }
    const video = make("video", {autoplay: "", playsinline: "", muted: "", "aria-label": "What the camera sees"});
    const take = make("button", {type: "button"}, "Take the picture"), close = make("button", {type: "button"}, "Close");
    const dialog = make("dialog", {class: "sr-camera", "aria-label": "Camera"}, video, take, close);
    take.addEventListener("click", () => {
      const canvas = make("canvas", {width: video.videoWidth, height: video.videoHeight});
      canvas.getContext("2d").drawImage(video, 0, 0);
      canvas.toBlob(blob => give([new File([blob], "camera.png", {type: blob.type})]));
      dialog.close();
    });
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      for (const track of stream.getTracks()) track.stop();
      dialog.remove();
    });
    video.srcObject = stream;
    document.body.append(dialog);
    dialog.showModal();
  }

  Object.assign(superres, {photo: {accept, choose, receive, photograph, hasCamera: Boolean(navigator.mediaDevices?.getUserMedia)}});
})();
